"""A tape compiled for CUDA: for each size of a step the calls with that many rows, captured as a graph."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from luced.device import abi
from luced.device.arguments import arguments, describe, op_of, workspace_bytes
from luced.device.cuda_runtime import DeviceMemory, HostMemory, Runtime
from luced.device.library import Calls, Context
from luced.device.values import Call, Rows, Storage, Value, aligned

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # rows; a step with more has its calls launched one by one


class Mirror:
    """A storage as the host sees it: `n_bytes` of pinned memory, which this keeps alive."""

    def __init__(self, memory: HostMemory, offset: int, n_bytes: int) -> None:
        self._memory = memory
        self.pointer = memory.pointer + offset
        self.bytes = memory.bytes[offset : offset + n_bytes]


class Program:
    """Uploads its inputs, runs its calls, brings back its outputs."""

    def __init__(
        self,
        runtime: Runtime,
        context: Context,
        mirrors: Mapping[Storage, Mirror],
        calls: list[Call],
        outputs: Sequence[Value],
    ) -> None:
        self._runtime, self._context, self._calls = runtime, context, calls
        self._counters = [_counter(rows, mirrors) for rows in dict.fromkeys(c.rows for c in calls if c.rows)]
        self._inputs = _copies(calls, mirrors)
        self._outputs = [(value, mirrors[value.storage].pointer) for value in outputs]
        self._sizes: dict[int, _Size] = {}
        self._workspace = DeviceMemory(runtime, max(workspace_bytes(context, calls), default=0))

    def run(self) -> None:
        """ModelError: a kernel does not support what it was given. EngineError: the device failed."""
        self.start()
        self._runtime.synchronize()

    def start(self) -> None:
        """Puts a run on the stream."""
        n_rows = max((int(counter[0]) for counter in self._counters), default=1)
        bound = next((bucket for bucket in BUCKETS if bucket >= n_rows), 0)
        if bound not in self._sizes:
            self._sizes[bound] = _Size(self, bound)
        self._sizes[bound].start()

    def take_fault(self) -> abi.FaultCode:
        return self._context.take_fault()

    def put(self, calls: Calls, bound: int) -> None:
        """Uploads, calls and downloads, on the stream."""
        copy = self._runtime.copy
        for to, source, n_bytes in self._inputs:
            copy(to, source, n_bytes)
        self._context.run(calls)
        for value, to in self._outputs:
            copy(to, value.storage.pointer, _used_bytes(value, bound))

    def calls_of(self, bound: int) -> Calls:
        ops = [(op_of(call), arguments(call, bound)) for call in self._calls]
        for (_, args), need in zip(ops, workspace_bytes(self._context, self._calls, bound), strict=True):
            if need:
                args.workspace = describe(self._workspace.pointer, "U8", (need,), (1,))
        return Calls(ops)


class _Size:
    """The calls for at most `bound` rows; 0: any number.

    At first they are launched one by one, which loads the kernels, then captured, unless there is no bound.
    """

    def __init__(self, program: Program, bound: int) -> None:
        self._program, self._bound = program, bound
        self._calls = program.calls_of(bound)
        self._was_run = False
        self._graph: Any = None

    def start(self) -> None:
        runtime = self._program._runtime
        if self._graph is not None:
            runtime.launch(self._graph)
        elif not self._bound or not self._was_run:
            self._program.put(self._calls, self._bound)
            self._was_run = True
        else:
            runtime.begin_capture()
            self._program.put(self._calls, self._bound)
            self._graph = runtime.end_capture()
            weakref.finalize(self, runtime.destroy, self._graph)
            runtime.launch(self._graph)


def _counter(rows: Rows, mirrors: Mapping[Storage, Mirror]) -> Any:
    return mirrors[rows.counter.storage].bytes.view(np.int32)


def _copies(calls: list[Call], mirrors: Mapping[Storage, Mirror]) -> list[tuple[int, int, int]]:
    """(to, from, bytes) for the inputs of the calls, those side by side as one."""
    inputs = dict.fromkeys(v.storage for call in calls for v in call.values() if v.storage.kind == "input")
    copies: list[tuple[int, int, int]] = []
    for s in sorted(inputs, key=lambda s: s.pointer):
        source = mirrors[s].pointer
        if copies:
            to, begin, n_bytes = copies[-1]
            if to + aligned(n_bytes) == s.pointer and begin + aligned(n_bytes) == source:
                copies[-1] = to, begin, s.pointer + s.n_bytes - to
                continue
        copies.append((s.pointer, source, s.n_bytes))
    return copies


def _used_bytes(value: Value, bound: int) -> int:
    """Of a storage that the value is the whole of: those of at most `bound` rows."""
    if bound and value.rows is not None:
        return value.nb[-1] * min(value.ne[-1], bound)
    return value.storage.n_bytes
