"""A tape compiled for CUDA: for each size of a step the calls with that many rows, captured as a graph."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from luced.device import abi
from luced.device.arguments import arguments, describe, op_of, workspace_bytes
from luced.device.cuda_runtime import Array, DeviceMemory, HostMemory, Runtime
from luced.device.device import array
from luced.device.library import Calls, Context
from luced.device.values import Call, Storage, Value, aligned

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # rows; a step with more has its calls launched one by one


class Program:
    """Uploads its inputs, runs its calls, brings back its outputs.

    The copies are no part of the graphs, whose addresses are fixed: what a run that is not read has in pinned memory is
    its own.
    """

    def __init__(
        self,
        runtime: Runtime,
        context: Context,
        mirrors: Mapping[Storage, Array],
        calls: list[Call],
        outputs: Sequence[Value],
    ) -> None:
        """mirrors: the inputs as the host writes them, side by side where they are so on the device."""
        self._runtime, self._context, self._calls = runtime, context, calls
        counters = dict.fromkeys(c.rows.counter.storage for c in calls if c.rows)
        self._counters = [mirrors[s].view(np.int32) for s in counters]
        inputs = dict.fromkeys(v.storage for call in calls for v in call.values() if v.storage.kind == "input")
        self._inputs = [(mirrors[first].ctypes.data, first.pointer, n) for first, n in _side_by_side(inputs)]
        self._outputs = outputs
        self._free: list[_Run] = []
        self._unread: deque[_Run] = deque()
        self._sizes: dict[int, _Size] = {}
        self._workspace = DeviceMemory(runtime, max(workspace_bytes(context, calls), default=0))

    def start(self) -> None:
        """Puts a run on the stream.

        ModelError: a kernel does not support what it was given. EngineError: the device failed.
        """
        assert len(self._unread) < 2, "two runs are not read"
        n_rows = max((int(counter[0]) for counter in self._counters), default=1)
        bound = next((bucket for bucket in BUCKETS if bucket >= n_rows), 0)
        if bound not in self._sizes:
            self._sizes[bound] = _Size(self, bound)
        run = self._free.pop() if self._free else _Run(self._runtime, self._inputs, self._outputs)
        run.upload()
        self._sizes[bound].start()
        run.download()
        self._unread.append(run)

    def read(self) -> list[Array]:
        """The outputs of the first run that was not read. EngineError: the device failed."""
        run = self._unread.popleft()
        self._runtime.wait(run.ended)
        self._free.append(run)
        return run.outputs

    def run(self) -> list[Array]:
        self.start()
        return self.read()

    def take_fault(self) -> abi.FaultCode:
        return self._context.take_fault()

    def put(self, calls: Calls) -> None:
        """The calls, on the stream."""
        self._context.run(calls)

    def calls_of(self, bound: int) -> Calls:
        ops = [(op_of(call), arguments(call, bound)) for call in self._calls]
        for (_, args), need in zip(ops, workspace_bytes(self._context, self._calls, bound), strict=True):
            if need:
                args.workspace = describe(self._workspace.pointer, "U8", (need,), (1,))
        return Calls(ops)


class _Run:
    """Pinned memory of a run, and when it ended."""

    def __init__(self, runtime: Runtime, inputs: list[tuple[int, int, int]], outputs: Sequence[Value]) -> None:
        """inputs: (where the host writes them, where they go, bytes)."""
        self._runtime = runtime
        self.ended = runtime.make_event()
        weakref.finalize(self, runtime.forget, self.ended)
        downloads = _side_by_side(dict.fromkeys(value.storage for value in outputs))
        sizes = [aligned(n) for _, _, n in inputs] + [aligned(n) for _, n in downloads]
        self._memory = HostMemory(runtime, sum(sizes))
        places = [self._memory.pointer + sum(sizes[:i]) for i in range(len(sizes))]
        self._uploads = [(place, *one) for place, one in zip(places, inputs, strict=False)]
        self._downloads = [
            (place, first.pointer, n) for place, (first, n) in zip(places[len(inputs) :], downloads, strict=True)
        ]
        self.outputs = [array(value, self._bytes_of(value.storage)) for value in outputs]

    def upload(self) -> None:
        for place, source, to, n_bytes in self._uploads:
            ctypes.memmove(place, source, n_bytes)
            self._runtime.copy(to, place, n_bytes)

    def download(self) -> None:
        for place, source, n_bytes in self._downloads:
            self._runtime.copy(place, source, n_bytes)
        self._runtime.record(self.ended)

    def _bytes_of(self, s: Storage) -> Array:
        """Of an output."""
        place, first, _ = next(one for one in self._downloads if 0 <= s.pointer - one[1] < one[2])
        begin = place + s.pointer - first - self._memory.pointer
        return self._memory.bytes[begin : begin + s.n_bytes]


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
            self._program.put(self._calls)
            self._was_run = True
        else:
            runtime.begin_capture()
            self._program.put(self._calls)
            self._graph = runtime.end_capture()
            weakref.finalize(self, runtime.destroy, self._graph)
            runtime.launch(self._graph)


def _side_by_side(storages: Iterable[Storage]) -> list[tuple[Storage, int]]:
    """Pieces of the device's memory, of which storages begin the next where the one before ends: the first of each,
    and bytes."""
    pieces: list[tuple[Storage, int]] = []
    for s in sorted(storages, key=lambda s: s.pointer):
        if pieces:
            first, n_bytes = pieces[-1]
            if first.pointer + aligned(n_bytes) == s.pointer:
                pieces[-1] = first, s.pointer + s.n_bytes - first.pointer
                continue
        pieces.append((s, s.n_bytes))
    return pieces
