"""A kernel library, opened: one context on one device. The only caller of the functions of luce.h.

Data in memory is named by address: whoever owns it keeps it alive for as long as calls point at it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from luced.device import abi
from luced.errors import EngineError, ModelError

CPU_LIBRARY = Path(__file__).with_name("libluce_cpu.so")
CUDA_LIBRARY = Path(__file__).with_name("libluce_cuda.so")


class Calls:
    """Ops in the order they run, as luce_run() takes them; holds their arguments alive."""

    def __init__(self, ops: Iterable[tuple[abi.Op, ctypes.Structure]]) -> None:
        self.args = list(ops)
        self.array = (abi.Call * len(self.args))()
        for call, (op, args) in zip(self.array, self.args, strict=True):
            call.op, call.args = op, ctypes.addressof(args)

    def __len__(self) -> int:
        return len(self.args)


class Context:
    """One device as a kernel library sees it, with its threads. Used by one thread at a time."""

    def __init__(
        self, isa: int = abi.Isa.AUTO, n_threads: int = 0, device: int = 0, path: Path | None = None, stream: int = 0
    ) -> None:
        """isa: abi.Isa, of a GPU the chip generation. n_threads 0: one for each core. path None: the CPU's kernels.
        stream: of a GPU.

        ModelError: no such library, device or instruction set.
        """
        self._handle = ctypes.c_void_p()
        self._path = path or CPU_LIBRARY
        self._library = _load(self._path)
        args = abi.OpenArgs(device, isa, n_threads, stream)
        self._check(self._library.luce_open(args, self._handle))

    def close(self) -> None:
        if self._handle:
            self._library.luce_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def info(self) -> abi.Info:
        """Instruction set, number of threads and name of the device."""
        info = abi.Info()
        self._check(self._library.luce_get_info(self._handle, info))
        return info

    def run(self, calls: Calls) -> None:
        """Runs the ops in order. What goes wrong inside them is in take_fault()."""
        self._check(self._library.luce_run(self._handle, calls.array, len(calls)))

    def take_fault(self) -> abi.FaultCode:
        """The first fault since it was last taken, and clears it."""
        return abi.FaultCode(self._library.luce_take_fault(self._handle))

    def workspace_bytes(self, op: abi.Op, args: ctypes.Structure) -> int:
        n_bytes = ctypes.c_int64()
        self._check(self._library.luce_workspace_bytes(self._handle, op, ctypes.byref(args), n_bytes))
        return n_bytes.value

    def packed_bytes(self, weight: abi.Tensor) -> int:
        """Bytes of a weight packed for this context; 0: it is read best as it is."""
        n_bytes = ctypes.c_int64()
        self._check(self._library.luce_packed_bytes(self._handle, weight, n_bytes))
        return n_bytes.value

    def pack(self, weight: abi.Tensor, packed: int, row_begin: int, row_end: int) -> None:
        """Packs rows of `weight` to the address `packed`; row_begin is a multiple of 16."""
        self._check(self._library.luce_pack(self._handle, weight, packed, row_begin, row_end))

    def serve_mailbox(self, box: int, calls: Calls) -> None:
        """A thread of the library runs the calls on this context at each ticket of the box at this address.

        The calls stay alive until stop_mailbox().
        """
        self._check(self._library.luce_mailbox_serve(self._handle, box, calls.array, len(calls)))

    def stop_mailbox(self, box: int) -> None:
        self._library.luce_mailbox_stop(self._handle, box)

    def _check(self, status: int) -> None:
        if status != abi.Status.OK:
            raise _error(abi.Status(status), self._library.luce_error(self._handle).decode(), self._path)


def check_built(path: Path) -> None:
    """ModelError: this kernel library was not built."""
    if not path.exists():
        what = f"{path.name}, a library of kernels, is not built"
        raise ModelError("no_device", what, f"in luced's source: {_build(path)}")


def _build(path: Path) -> str:
    return "make cuda" if path == CUDA_LIBRARY else "make ask"


def _error(status: abi.Status, message: str, path: Path) -> EngineError | ModelError:
    on_cpu = path != CUDA_LIBRARY
    match status:
        case abi.Status.UNSUPPORTED:
            return ModelError("unsupported_model", message, "" if on_cpu else "compute on the CPU: device = cpu")
        case abi.Status.NO_MEMORY:
            return ModelError("no_memory", message)
        case abi.Status.NO_DEVICE:
            return ModelError("no_device", message, "" if on_cpu else "build the kernels for it: make cuda")
        case abi.Status.FAULT:
            return EngineError("engine_failed", message)
        case _:
            return EngineError("internal", message)


def _load(path: Path) -> ctypes.CDLL:
    check_built(path)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ModelError(
            "no_device", f"cannot load the kernels: {error}", f"build them anew: {_build(path)}"
        ) from error
    library.luce_abi_version.restype = ctypes.c_uint32
    version = library.luce_abi_version()
    if version != abi.LUCE_ABI_VERSION:
        message = f"{path.name} has kernel contract {version}, this luced needs {abi.LUCE_ABI_VERSION}"
        raise ModelError("no_device", message, f"build the kernels again: {_build(path)}")
    abi.declare(library)
    return library
