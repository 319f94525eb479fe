"""A kernel library, opened: every status it returns becomes a typed error with its message."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Any

from luced.device import abi
from luced.errors import EngineError, ModelError

# Who must act on a status: a file of a kind we lack kernels for, a machine without the device, or us.
_ERRORS: dict[int, tuple[type[EngineError] | type[ModelError], str]] = {
    abi.Status.UNSUPPORTED: (ModelError, "unsupported_model"),
    abi.Status.BAD_ARGUMENT: (EngineError, "internal"),
    abi.Status.NO_MEMORY: (ModelError, "no_memory"),
    abi.Status.NO_DEVICE: (ModelError, "no_device"),
    abi.Status.FAULT: (EngineError, "engine_failed"),
}


class Context:
    """One device of a kernel library (luce_context), used by one thread at a time."""

    def __init__(self, path: Path, *, device: int = 0, isa: str = "auto", n_threads: int = 0) -> None:
        """ModelError: no library at `path`, or no such device or instruction set here."""
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ModelError("no_device", f"cannot open the kernels: {error}", "build them: `make`") from error
        self._pointer = ctypes.c_void_p()
        abi.declare(self.library)
        version = self.library.luce_abi_version()
        if version != abi.LUCE_ABI_VERSION:
            why = f"{path} has kernel contract {version}, luced needs {abi.LUCE_ABI_VERSION}"
            raise ModelError("no_device", why, "rebuild the kernels: `make`")
        args = abi.OpenArgs(device, abi.Isa[isa.upper()], n_threads)
        self._check(self.library.luce_open(ctypes.byref(args), ctypes.byref(self._pointer)))

    def info(self) -> tuple[str, str, int]:
        """(name of the device, instruction set, threads)."""
        out = abi.Info()
        self._check(self.library.luce_get_info(self._pointer, ctypes.byref(out)))
        return out.name.decode(), abi.Isa(out.isa).name.lower(), out.n_threads

    def packed_bytes(self, weight: abi.Tensor) -> int:
        out = ctypes.c_int64()
        self._check(self.library.luce_packed_bytes(self._pointer, ctypes.byref(weight), ctypes.byref(out)))
        return out.value

    def pack(self, weight: abi.Tensor, packed: int, row_begin: int, row_end: int) -> None:
        """Rows [row_begin, row_end) of a weight into the memory at `packed`."""
        self._check(self.library.luce_pack(self._pointer, ctypes.byref(weight), packed, row_begin, row_end))

    def workspace_bytes(self, op: str, args: ctypes.Structure) -> int:
        out = ctypes.c_int64()
        index = abi.OPS.index(op)
        self._check(self.library.luce_workspace_bytes(self._pointer, index, ctypes.byref(args), ctypes.byref(out)))
        return out.value

    def run(self, calls: ctypes.Array[Any] | ctypes.Structure, n_calls: int) -> None:
        """Runs an array of abi.Call."""
        status = self.library.luce_run(self._pointer, ctypes.cast(calls, ctypes.POINTER(abi.Call)), n_calls)
        if status:
            self._check(status)

    def take_fault(self) -> abi.FaultCode:
        """What went wrong while calls ran, and forgets it."""
        return abi.FaultCode(self.library.luce_take_fault(self._pointer))

    def close(self) -> None:
        if self._pointer:
            self.library.luce_close(self._pointer)
            self._pointer = ctypes.c_void_p()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, status: int) -> None:
        if status == abi.Status.OK:
            return
        error, name = _ERRORS[status]
        raise error(name, (self.library.luce_error(self._pointer) or b"").decode())


def tensor(data: int, dtype: str, ne: tuple[int, ...], nb: tuple[int, ...], packed: bool = False) -> abi.Tensor:
    """luce_tensor: missing dimensions have one element."""
    t = abi.Tensor()
    t.data, t.type, t.layout = data, abi.Type[dtype], abi.Layout.PACKED if packed else abi.Layout.ROWS
    n_missing = 4 - len(ne)
    t.ne[:] = [*ne, *[1] * n_missing]
    t.nb[:] = [*nb, *[nb[-1] * ne[-1]] * n_missing]
    return t
