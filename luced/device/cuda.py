"""A CUDA device: memory, one stream, and compiled tapes, which are captured once and then replayed.

What a kernel library cannot do by itself is done through cuda-python: memory, copies, streams, graphs. Kernels are
launched by libluce_cuda alone (luce_run), on the stream made here.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from luced.device import nvidia
from luced.device.arguments import tensor, workspace_bytes
from luced.device.cuda_program import Program
from luced.device.cuda_runtime import DeviceMemory, HostMemory, Runtime
from luced.device.device import array
from luced.device.library import CUDA_LIBRARY, Context, check_built
from luced.device.values import Call, Storage, Value, aligned

Array = npt.NDArray[Any]
STAGING_BYTES = 8 << 20  # of each of two pinned buffers through which weights go


class Cuda:
    """Allocates, packs, compiles and runs. Everything it gave is freed when nobody holds it."""

    n_threads = 1
    runs_ahead = True

    def __init__(self, index: int = 0, generation: int = 0) -> None:
        """index: among the devices that the driver shows. generation: of an older chip, whose ways are then used.

        ModelError: no driver, no kernels, no cuda-python, no such device; or it cannot be used.
        """
        nvidia.check_driver()
        check_built(CUDA_LIBRARY)
        self.name = f"cuda:{index}"
        self.runtime = Runtime(index)
        self.context = Context(generation, device=index, path=CUDA_LIBRARY, stream=self.runtime.stream)
        info = self.context.info()
        self.device_name, self.isa = info.name.decode(), f"sm_{info.isa}"
        self._mirrors: dict[Storage, Array] = weakref.WeakKeyDictionary()  # type: ignore[assignment]
        self._held: dict[Storage, DeviceMemory | HostMemory] = weakref.WeakKeyDictionary()  # type: ignore[assignment]
        self._staging = [_Staging(self.runtime) for _ in range(2)]

    def free_bytes(self) -> int:
        """Memory of the device that can still be had."""
        return self.runtime.free_bytes()

    def allocate(self, storages: list[Storage], offsets: list[int] | None = None, grows: bool = False) -> DeviceMemory:
        """Zeroed memory for these storages, side by side or at `offsets`; writes the constants.

        Inputs and outputs lie first, in a piece each; the host has a copy of the inputs, which a run uploads. `host`
        storages are the host's alone.
        """
        if offsets is not None:
            return self._place(storages, offsets)
        inputs = [s for s in storages if s.kind == "input"]
        outputs = [s for s in storages if s.kind == "output"]
        placed = inputs + outputs + [s for s in storages if s.kind not in ("input", "output", "host")]
        device = self._place(placed, side_by_side(placed))
        copy = np.zeros(sum(aligned(s.n_bytes) for s in inputs), np.uint8)
        for s in inputs:
            begin = s.pointer - device.pointer
            self._mirrors[s] = copy[begin : begin + s.n_bytes]
        for s in storages:
            if s.kind == "host":
                self._held[s] = memory = HostMemory(self.runtime, s.n_bytes)
                s.pointer, self._mirrors[s] = memory.pointer, memory.bytes
        return device

    def _place(self, storages: list[Storage], offsets: list[int]) -> DeviceMemory:
        n_bytes = max((o + aligned(s.n_bytes) for s, o in zip(storages, offsets, strict=True)), default=0)
        memory = self.reserve(n_bytes)
        for s, offset in zip(storages, offsets, strict=True):
            s.pointer = memory.pointer + offset
            if s.kind == "constant":
                self.runtime.upload(s.pointer, bytes(s.data))
        return memory

    def reserve(self, n_bytes: int) -> DeviceMemory:
        return DeviceMemory(self.runtime, n_bytes)

    def bind(self, storage: Storage) -> Iterator[int]:
        """Copies a weight as it is in the file."""
        memory = self.reserve(storage.n_bytes)
        self._held[storage] = memory
        storage.pointer = memory.pointer
        for begin in range(0, storage.n_bytes, STAGING_BYTES):
            end = min(begin + STAGING_BYTES, storage.n_bytes)
            self.runtime.copy(memory.pointer + begin, self._stage(storage.data, begin, end), end - begin)
            self._staging[0].sent()
            yield end - begin

    def view(self, value: Value) -> Array:
        """An input or a `host` storage as the host has it, shape in reverse ggml order.

        The bytes, where numpy lacks the type.
        """
        return array(value, self._mirrors[value.storage])

    def write(self, value: Value, row: int, data: bytes) -> None:
        """The beginning of a row of a table or output, on the stream."""
        to = value.storage.pointer + value.offset + row * value.nb[-1]
        self.runtime.copy(to, np.frombuffer(data, np.uint8).ctypes.data, len(data))

    def packed_bytes(self, value: Value) -> int:
        return self.context.packed_bytes(tensor(value, 0))

    def pack(self, packed: Storage, row_begin: int, row_end: int) -> None:
        """Sends rows of the file to the device, which packs them; it may still be at it when this returns."""
        rows = packed.packs
        assert rows is not None
        stride = rows.nb[1]
        source = self._stage(rows.storage.data, row_begin * stride, row_end * stride)
        staging = self._staging[0]
        self.runtime.copy(staging.on_device.pointer, source, (row_end - row_begin) * stride)
        self.context.pack(
            tensor(rows, staging.on_device.pointer - row_begin * stride), packed.pointer, row_begin, row_end
        )
        staging.sent()

    def _stage(self, data: Any, begin: int, end: int) -> int:
        """Address of these bytes in the pinned buffer that is free longest; it is self._staging[0] from now on."""
        self._staging.reverse()
        return self._staging[0].fill(np.frombuffer(data, np.uint8)[begin:end])

    def workspace_bytes(self, calls: list[Call]) -> int:
        return max(workspace_bytes(self.context, calls), default=0)

    def compile(self, calls: list[Call], outputs: Sequence[Value] = ()) -> Program:
        """The calls with the addresses of their storages, which must be allocated, and a workspace of their own.

        outputs: activations and outputs that read() gives.
        """
        return Program(self.runtime, self.context, self._mirrors, calls, outputs)

    def close(self) -> None:
        self.runtime.synchronize()
        self.context.close()
        self.runtime.close()


class _Staging:
    """A pinned buffer, its twin on the device, and the event after which both are free again."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._event = runtime.make_event()
        self._n_bytes = 0

    def fill(self, data: Array) -> int:
        self._runtime.wait(self._event)
        if data.nbytes > self._n_bytes:
            self._n_bytes = max(data.nbytes, STAGING_BYTES)
            self._host = HostMemory(self._runtime, self._n_bytes)
            self.on_device = DeviceMemory(self._runtime, self._n_bytes)
        ctypes.memmove(self._host.pointer, data.ctypes.data, data.nbytes)
        return self._host.pointer

    def sent(self) -> None:
        self._runtime.record(self._event)


def side_by_side(storages: list[Storage]) -> list[int]:
    offsets, end = [], 0
    for s in storages:
        offsets.append(end)
        end += aligned(s.n_bytes)
    return offsets
