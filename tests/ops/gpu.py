"""The op tests on a CUDA device: a context that takes arguments in the host's memory and runs them on the device.

Each piece of memory that the arguments touch goes to the device with a guard at either end, and comes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from luced.device import abi
from luced.device.cuda_runtime import DeviceMemory, Runtime
from luced.device.library import CUDA_LIBRARY, Calls, Context
from luced.device.values import BLOCKS

GUARD_BYTES = 256
GUARD = 0xA5

# What the library has no kernels for: ops, types of weights, what cases begin with, and cases.
LACKING = {"l2_norm", "gated_norm", "gate", "conv", "conv_commit", "delta", "delta_commit", "TQ2_0", "MXFP4", "NVFP4"}
LACKING |= {"scale", "route", "expert_matmul", "combine", "merge", "compress", "select", "hyper_weights", "hyper_mix"}
LACKING |= {"lse", "chosen", "glu-silu-limit", "glu-gelu-limit"}
LACKING |= {t.name for t in abi.Type if t.name.startswith("IQ")}


class GpuContext(Context):
    """luce.h's functions on a device, with arguments in the host's memory."""

    def __init__(self, generation: int = 0) -> None:
        """ModelError: there is no device, or no library."""
        self.runtime = Runtime(0)
        super().__init__(generation, path=CUDA_LIBRARY, stream=self.runtime.stream)

    def run(self, calls: Calls) -> None:
        structs = [args for _, args in calls.args]
        tensors = [(t, self._extent(t)) for args in structs for t in _tensors(args)]
        with _Moved(self.runtime, tensors, structs):
            super().run(calls)
            self.runtime.synchronize()

    def pack(self, weight: abi.Tensor, packed: int, row_begin: int, row_end: int) -> None:
        n_bytes = self.packed_bytes(weight)
        whole = abi.Tensor(packed, abi.Type.U8, abi.Layout.ROWS, (n_bytes, 1, 1, 1), (1, n_bytes, n_bytes, n_bytes))
        with _Moved(self.runtime, [(weight, self._extent(weight)), (whole, n_bytes)], []):
            super().pack(weight, whole.data or 0, row_begin, row_end)
            self.runtime.synchronize()

    def _extent(self, t: abi.Tensor) -> int:
        """Bytes from the first to the last that belongs to it."""
        if t.layout == abi.Layout.PACKED:
            return self.packed_bytes(t)
        n_last, n_values = t.nb[0], t.ne[0]
        if t.type == abi.Type.Q8_A:
            n_last, n_values = t.ne[0] * 5 // 4, 1
        elif t.type in _PER_BLOCK:
            n_values //= _PER_BLOCK[abi.Type(t.type)]
        return int(n_last + sum((n - 1) * b for n, b in zip((n_values, *t.ne[1:]), t.nb, strict=True)))


class _Moved:
    """The memory of these tensors, and the row counts of these structs, on the device while this is entered."""

    def __init__(self, runtime: Runtime, tensors: list[tuple[abi.Tensor, int]], structs: list[Any]) -> None:
        self._runtime = runtime
        self._tensors = [t for t, _ in tensors]
        self._structs = [s for s in structs if getattr(s, "n_rows", None)]
        self._before = [t.data for t in self._tensors], [s.n_rows for s in self._structs]
        spans = [(t.data or 0, (t.data or 0) + n) for t, n in tensors] + [
            (s.n_rows, s.n_rows + 4) for s in self._structs
        ]
        self._spans = list(_joined(spans))
        # With the same position in a cache line as on the host.
        self._memories = [DeviceMemory(runtime, end - begin + 2 * GUARD_BYTES + 256) for begin, end in self._spans]

    def __enter__(self) -> None:
        guard = np.full(GUARD_BYTES, GUARD, np.uint8)
        for (begin, end), memory in zip(self._spans, self._memories, strict=True):
            at = self._place(begin, memory)
            for to, source, n in (
                (at - GUARD_BYTES, guard.ctypes.data, GUARD_BYTES),
                (at, begin, end - begin),
                (at + end - begin, guard.ctypes.data, GUARD_BYTES),
            ):
                self._runtime.copy(to, source, n)
        self._runtime.synchronize()
        for t in self._tensors:
            t.data = self._moved(t.data or 0)
        for s in self._structs:
            s.n_rows = self._moved(s.n_rows)

    def __exit__(self, *_: object) -> None:
        for t, data in zip(self._tensors, self._before[0], strict=True):
            t.data = data
        for s, n_rows in zip(self._structs, self._before[1], strict=True):
            s.n_rows = n_rows
        guards = np.zeros(2 * GUARD_BYTES, np.uint8)
        for (begin, end), memory in zip(self._spans, self._memories, strict=True):
            at = self._place(begin, memory)
            self._runtime.copy(begin, at, end - begin)
            self._runtime.copy(guards.ctypes.data, at - GUARD_BYTES, GUARD_BYTES)
            self._runtime.copy(guards.ctypes.data + GUARD_BYTES, at + end - begin, GUARD_BYTES)
            self._runtime.synchronize()
            assert (guards == GUARD).all(), "a kernel wrote outside the memory of its arguments"

    def _place(self, begin: int, memory: DeviceMemory) -> int:
        return memory.pointer + GUARD_BYTES + begin % 256

    def _moved(self, address: int) -> int:
        for (begin, end), memory in zip(self._spans, self._memories, strict=True):
            if begin <= address < end:
                return self._place(begin, memory) + address - begin
        raise AssertionError("an address of no tensor")


def _tensors(args: Any) -> Iterator[abi.Tensor]:
    for name, kind in args._fields_:
        if kind is abi.Tensor and getattr(args, name).data:
            yield getattr(args, name)


_PER_BLOCK = {t: BLOCKS[t.name][0] for t in abi.Type if t.name in BLOCKS and BLOCKS[t.name][0] > 1}


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The spans in order, those that overlap as one."""
    begin, end = -1, -1
    for a, b in sorted(spans):
        if a >= end:
            if end > begin:
                yield begin, end
            begin, end = a, b
        end = max(end, b)
    if end > begin:
        yield begin, end
