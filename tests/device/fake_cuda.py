"""A CUDA device where there is none: the runtime's functions on memory of the host, the kernels of the CPU.

As on a GPU, what is put on the stream runs later, here as late as it can: when somebody waits for it. What is put there
while it is captured runs when the graph is launched. An error that is no lack of memory stays: every later call gives
it too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luced.device import abi, cuda, cuda_runtime, library, nvidia
from luced.device.library import Calls, Context

MESSAGES = {0: b"no error", 2: b"out of memory", 46: b"devices unavailable", 700: b"illegal access", 999: b"unknown"}
FREE_BYTES = 1 << 30
Call = Callable[[], None]


class FakeRuntime:
    """Stands for cuda.bindings.runtime. `errors`: what the functions of these names give."""

    cudaStreamNonBlocking = cudaEventDisableTiming = cudaHostAllocMapped = 1  # noqa: N815

    class cudaMemcpyKind:  # noqa: N801
        cudaMemcpyDefault = 4  # noqa: N815

    class cudaStreamCaptureMode:  # noqa: N801
        cudaStreamCaptureModeRelaxed = 2  # noqa: N815

    def __init__(self, n_devices: int = 2, free_bytes: int = FREE_BYTES) -> None:
        self.n_devices = n_devices
        self.free_bytes = free_bytes
        self.driver_version = self.runtime_version = 13000
        self.errors: dict[str, int] = {}
        self.bus_ids = ["0000:01:00.0", "0000:02:00.0"]
        self.n_launches = 0
        self._lost = 0
        self._memory: dict[int, Any] = {}
        self._stream: list[Call] = []  # what has not run
        self._n_run = 0
        self._events: dict[int, int] = {}  # how much of all that was put on the stream lies before each
        self._captured: list[Call] | None = None
        self._graphs: dict[int, list[Call]] = {}

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        function = getattr(self, f"_{name}") if name.startswith("cuda") else None
        if function is None:
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            error = self._lost or self.errors.get(name, 0)
            if error not in (0, nvidia.NO_MEMORY) and name != "cudaGetDeviceCount":
                self._lost = error
            return (error, *[None] * (name in ("cudaMalloc", "cudaHostAlloc"))) if error else (0, *function(*args))

        return call

    def cudaDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return 0, self.driver_version

    def cudaRuntimeGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return 0, self.runtime_version

    def cudaGetErrorString(self, error: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, MESSAGES.get(error, b"?")

    def enqueue(self, call: Call) -> None:
        (self._stream if self._captured is None else self._captured).append(call)

    def _run(self, end: int | None = None) -> None:
        """What is on the stream, or as far as this."""
        n = len(self._stream) if end is None else max(0, end - self._n_run)
        calls, self._stream = self._stream[:n], self._stream[n:]
        self._n_run += n
        for call in calls:
            call()

    def _cudaGetDeviceCount(self) -> tuple[int]:  # noqa: N802
        return (self.n_devices,)

    def _cudaDeviceGetPCIBusId(self, n_chars: int, index: int) -> tuple[bytes]:  # noqa: N802
        return ((self.bus_ids[index].encode() + b"\0").ljust(n_chars),)

    def _cudaMemGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return self.free_bytes, FREE_BYTES

    def _cudaMalloc(self, n_bytes: int) -> tuple[int]:  # noqa: N802
        memory = (ctypes.c_uint8 * (n_bytes + 256))()
        pointer = ctypes.addressof(memory) + 255 & ~255
        self._memory[pointer] = memory
        self.free_bytes -= n_bytes
        return (pointer,)

    def _cudaHostAlloc(self, n_bytes: int, flags: int) -> tuple[int]:  # noqa: N802
        pointer = self._cudaMalloc(n_bytes)
        self.free_bytes += n_bytes
        return pointer

    def _cudaFree(self, pointer: int) -> tuple[()]:  # noqa: N802
        self._run()
        self.free_bytes += len(self._memory.pop(pointer)) - 256
        return ()

    def _cudaFreeHost(self, pointer: int) -> tuple[()]:  # noqa: N802
        self._run()
        del self._memory[pointer]
        return ()

    def _cudaMemsetAsync(self, pointer: int, value: int, n_bytes: int, stream: int) -> tuple[()]:  # noqa: N802
        self.enqueue(lambda: (ctypes.memset(pointer, value, n_bytes), None)[1])
        return ()

    def _cudaMemcpyAsync(self, to: int, source: int, n_bytes: int, kind: int, stream: int) -> tuple[()]:  # noqa: N802
        is_pinned = any(0 <= source - pointer < len(memory) - 255 for pointer, memory in self._memory.items())
        data = source if is_pinned else ctypes.string_at(source, n_bytes)  # ordinary memory is read at once
        self.enqueue(lambda: (ctypes.memmove(to, data, n_bytes), None)[1])
        return ()

    def _cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[()]:  # noqa: N802
        self._captured = []
        return ()

    def _cudaStreamEndCapture(self, stream: int) -> tuple[int]:  # noqa: N802
        captured, self._captured = self._captured, None
        assert captured is not None
        self._graphs[len(self._graphs)] = captured
        return (len(self._graphs) - 1,)

    def _cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[int]:  # noqa: N802
        return (graph,)

    def _cudaGraphLaunch(self, graph: int, stream: int) -> tuple[()]:  # noqa: N802
        self.n_launches += 1
        self._stream += self._graphs[graph]
        return ()

    def _cudaEventCreateWithFlags(self, flags: int) -> tuple[int]:  # noqa: N802
        event = len(self._events)
        self._events[event] = 0
        return (event,)

    def _cudaEventRecord(self, event: int, stream: int) -> tuple[()]:  # noqa: N802
        self._events[event] = self._n_run + len(self._stream)
        return ()

    def _cudaEventSynchronize(self, event: int) -> tuple[()]:  # noqa: N802
        self._run(self._events[event])
        return ()

    def _cudaStreamSynchronize(self, stream: int) -> tuple[()]:  # noqa: N802
        self._run()
        return ()

    def _cudaStreamCreateWithFlags(self, flags: int) -> tuple[int]:  # noqa: N802
        return (1,)

    def _nothing(self, *args: Any) -> tuple[()]:
        return ()

    _cudaSetDevice = _cudaStreamDestroy = _nothing  # noqa: N815
    _cudaEventDestroy = _cudaGraphDestroy = _cudaGraphExecDestroy = _nothing  # noqa: N815


def install(patch: pytest.MonkeyPatch, runtime: FakeRuntime, root: Path) -> None:
    """`cuda` is a device from now on, on a machine whose proc, dev and sys are below root."""

    class FakeContext(Context):
        def __init__(self, generation: int, device: int, path: Path, stream: int) -> None:
            super().__init__()

        def run(self, calls: Calls) -> None:
            runtime.enqueue(lambda: super(FakeContext, self).run(calls))

        def pack(self, weight: abi.Tensor, packed: int, row_begin: int, row_end: int) -> None:
            runtime.enqueue(lambda: super(FakeContext, self).pack(weight, packed, row_begin, row_end))

    (root / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
    (root / "proc/driver/nvidia/version").touch()
    (root / "dev").mkdir(exist_ok=True)
    for node in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        (root / "dev" / node).touch()
    patch.setattr(nvidia, "ROOT", root)
    patch.setattr(cuda_runtime, "bindings", lambda: runtime)
    patch.setattr(cuda, "CUDA_LIBRARY", library.CPU_LIBRARY)
    patch.setattr(cuda, "Context", FakeContext)
