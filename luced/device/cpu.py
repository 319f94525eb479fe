"""The CPU as a device: memory is ordinary memory, a compiled tape is a list of calls."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from luced.device import abi
from luced.device.arguments import arguments, describe, op_of, tensor, workspace_bytes
from luced.device.device import array
from luced.device.library import Calls, Context
from luced.device.memory import anonymous_bytes, bytes_left
from luced.device.values import Call, Storage, Value, aligned

Array = npt.NDArray[Any]


class Cpu:
    """Allocates, packs, compiles and runs. Everything it gave is freed by close()."""

    name = "cpu"
    runs_ahead = False  # the host is the device

    def __init__(self, isa: str = "auto", n_threads: int = 0) -> None:
        """ModelError: no kernels, or no such instruction set here."""
        self.context = Context(abi.Isa[isa.upper()], n_threads)
        self._memories: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._touched_before = anonymous_bytes()
        info = self.context.info()
        self.device_name, self.isa, self.n_threads = info.name.decode(), abi.Isa(info.isa).name.lower(), info.n_threads

    def free_bytes(self) -> int:
        """Memory that can still be had: what the kernel says, less what was allocated here and not touched yet."""
        allocated = sum(one.n_bytes for one in self._memories)
        touched = anonymous_bytes() - self._touched_before
        return bytes_left(max(0, allocated - touched))

    def allocate(self, storages: list[Storage], offsets: list[int] | None = None, grows: bool = False) -> Memory:
        """Zeroed memory for these storages, side by side or at `offsets`; writes the constants. What `grows` is used
        little by little, as a cache is, and takes no more of the machine's memory than was used."""
        if offsets is None:
            offsets, end = [], 0
            for s in storages:
                offsets.append(end)
                end += aligned(s.n_bytes)
        n_bytes = max((o + aligned(s.n_bytes) for s, o in zip(storages, offsets, strict=True)), default=0)
        memory = self.reserve(n_bytes, grows)
        for s, offset in zip(storages, offsets, strict=True):
            s.pointer = memory.pointer + offset
            if s.kind == "constant":
                memory.bytes[offset : offset + s.n_bytes] = np.frombuffer(s.data, np.uint8)
        return memory

    def reserve(self, n_bytes: int, grows: bool = False) -> Memory:
        memory = Memory(n_bytes, grows)
        self._memories.add(memory)
        return memory

    def bind(self, storage: Storage) -> Iterator[int]:
        """Reads a weight where the file is mapped."""
        storage.pointer = _address(np.frombuffer(storage.data, np.uint8))
        yield storage.n_bytes

    def view(self, value: Value) -> Array:
        """The value as an array, in place, shape in reverse ggml order; the bytes, where numpy lacks the type."""
        s = value.storage
        memory: Array = np.ctypeslib.as_array((ctypes.c_uint8 * s.n_bytes).from_address(s.pointer))
        return array(value, memory)

    def write(self, value: Value, row: int, data: bytes) -> None:
        """The beginning of a row of a table or output."""
        ctypes.memmove(value.storage.pointer + value.offset + row * value.nb[-1], data, len(data))

    def packed_bytes(self, value: Value) -> int:
        return self.context.packed_bytes(_tensor(value))

    def pack(self, packed: Storage, row_begin: int, row_end: int) -> None:
        assert packed.packs is not None
        self.context.pack(_tensor(packed.packs), packed.pointer, row_begin, row_end)

    def workspace_bytes(self, calls: list[Call]) -> int:
        return max(workspace_bytes(self.context, calls), default=0)

    def compile(self, calls: list[Call], outputs: Sequence[Value] = ()) -> Program:
        """The calls with the addresses of their storages, which must be allocated, and a workspace of their own.

        outputs: activations and outputs that read() gives.
        """
        return Program(self, calls, [self.view(value) for value in outputs])

    def close(self) -> None:
        self.context.close()


class Memory:
    """Anonymous pages: zero until touched, and given back when this is collected."""

    def __init__(self, n_bytes: int, grows: bool) -> None:
        self.n_bytes = n_bytes
        try:
            self._pages = mmap.mmap(-1, max(n_bytes, 1), mmap.MAP_PRIVATE)  # shared pages are never huge
        except OSError as error:
            raise MemoryError from error
        if n_bytes > 1 << 21:
            self._pages.madvise(mmap.MADV_NOHUGEPAGE if grows else mmap.MADV_HUGEPAGE)
        self.bytes = np.frombuffer(self._pages, np.uint8)
        self.pointer = _address(self.bytes)


class Program:
    """A compiled tape."""

    def __init__(self, device: Cpu, calls: list[Call], outputs: list[Array]) -> None:
        self._outputs = outputs
        self._kept: list[Array] = []  # the outputs of a run that is not read, when another has begun
        self._n_unread = 0
        self._context = device.context
        ops = [(op_of(call), arguments(call)) for call in calls]
        needs = workspace_bytes(self._context, calls)
        self._workspace = device.reserve(max(needs, default=0))
        for (_, args), need in zip(ops, needs, strict=True):
            if need:
                args.workspace = describe(self._workspace.pointer, "U8", (need,), (1,))
        self._calls = Calls(ops)

    def start(self) -> None:
        """Runs. ModelError: a kernel does not support what it was given. EngineError: the device failed."""
        assert self._n_unread < 2, "two runs are not read"
        if self._n_unread:
            self._kept = [output.copy() for output in self._outputs]
        self._n_unread += 1
        self._context.run(self._calls)

    def read(self) -> list[Array]:
        """The outputs of the first run that was not read."""
        self._n_unread -= 1
        kept, self._kept = self._kept, []
        return kept or self._outputs

    def run(self) -> list[Array]:
        self.start()
        return self.read()

    def take_fault(self) -> abi.FaultCode:
        return self._context.take_fault()


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _tensor(value: Value) -> abi.Tensor:
    s = value.storage
    pointer = s.pointer
    if not pointer and s.data is not None:
        pointer = _address(np.frombuffer(s.data, np.uint8))
    return tensor(value, pointer)
