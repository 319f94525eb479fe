"""The CUDA runtime as cuda-python gives it: one device and its stream, memory, events, graphs; errors are ours."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from luced.device import nvidia
from luced.errors import EngineError, ModelError

Array = npt.NDArray[Any]
MIB = 1 << 20


def bindings() -> Any:
    """cuda-python's module of the runtime. ModelError: it is not there."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise ModelError("no_device", f"cuda-python is not there: {error}", "pip install 'luced[cuda]'") from error
    return runtime


class Runtime:
    """One device, made current in this thread, and one stream on it."""

    def __init__(self, index: int) -> None:
        """ModelError: no cuda-python, no such device, or it cannot be used."""
        self.cuda = runtime = bindings()
        n_devices = self._open("cudaGetDeviceCount")
        if not 0 <= index < n_devices:
            what = f"there is no CUDA device {index}, the driver has {n_devices}"
            raise ModelError("no_device", what, f"say cuda:0 to cuda:{n_devices - 1}; `nvidia-smi -L` lists them")
        self._open("cudaSetDevice", index)
        self._stream = self._open("cudaStreamCreateWithFlags", runtime.cudaStreamNonBlocking)
        self.stream = int(self._stream)

    def close(self) -> None:
        self._call("cudaStreamDestroy", self._stream)

    def free_bytes(self) -> int:
        free, _ = self._call("cudaMemGetInfo")
        return int(free)

    # ---- memory ----

    def allocate(self, n_bytes: int) -> int:
        """Zeroed. ModelError: there is not so much."""
        pointer = self._take("cudaMalloc", n_bytes)
        self._call("cudaMemsetAsync", pointer, 0, n_bytes, self._stream)
        return pointer

    def free(self, pointer: int) -> None:
        self.cuda.cudaFree(pointer)

    def allocate_host(self, n_bytes: int) -> int:
        """Pinned, at the same address on the device. ModelError: there is not so much."""
        pointer = self._take("cudaHostAlloc", n_bytes, self.cuda.cudaHostAllocMapped)
        ctypes.memset(pointer, 0, n_bytes)
        return pointer

    def free_host(self, pointer: int) -> None:
        self.cuda.cudaFreeHost(pointer)

    def copy(self, to: int, source: int, n_bytes: int) -> None:
        """On the stream, between any two memories. Ordinary memory of the host is read before this returns."""
        self._call("cudaMemcpyAsync", to, source, n_bytes, self.cuda.cudaMemcpyKind.cudaMemcpyDefault, self._stream)

    def upload(self, to: int, data: bytes) -> None:
        source = np.frombuffer(data, np.uint8)
        self.copy(to, source.ctypes.data, source.nbytes)
        self.synchronize()

    # ---- order ----

    def synchronize(self) -> None:
        """Waits for all that is on the stream. EngineError: some of it failed, and the device is lost."""
        self._call("cudaStreamSynchronize", self._stream)

    def make_event(self) -> Any:
        return self._call("cudaEventCreateWithFlags", self.cuda.cudaEventDisableTiming)

    def record(self, event: Any) -> None:
        self._call("cudaEventRecord", event, self._stream)

    def wait(self, event: Any) -> None:
        """Until the stream has come to where the event was recorded; at once if it never was."""
        self._call("cudaEventSynchronize", event)

    def forget(self, event: Any) -> None:
        self.cuda.cudaEventDestroy(event)

    # ---- graphs ----

    def begin_capture(self) -> None:
        self._call("cudaStreamBeginCapture", self._stream, self.cuda.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed)

    def end_capture(self) -> Any:
        """What was put on the stream since, ready to be launched."""
        graph = self._call("cudaStreamEndCapture", self._stream)
        executable = self._call("cudaGraphInstantiate", graph, 0)
        self._call("cudaGraphDestroy", graph)
        return executable

    def launch(self, executable: Any) -> None:
        self._call("cudaGraphLaunch", executable, self._stream)

    def destroy(self, executable: Any) -> None:
        self.cuda.cudaGraphExecDestroy(executable)

    # ---- errors ----

    def _call(self, name: str, *args: Any) -> Any:
        """EngineError: any error. Most of them stay: nothing can be done on the device any more in this process."""
        error, *results = getattr(self.cuda, name)(*args)
        if int(error):
            raise EngineError("engine_failed", f"{name}: {self._text(error)}")
        return results[0] if len(results) == 1 else results

    def _open(self, name: str, *args: Any) -> Any:
        """ModelError: any error, with its cause."""
        error, *results = getattr(self.cuda, name)(*args)
        if int(error):
            versions = [self.cuda.cudaDriverGetVersion()[1], self.cuda.cudaRuntimeGetVersion()[1]]
            raise nvidia.explain(int(error), self._text(error), *versions)
        return results[0] if results else None

    def _take(self, name: str, n_bytes: int, *flags: int) -> int:
        """ModelError: there is not so much memory, and how much is missing."""
        error, pointer = getattr(self.cuda, name)(max(n_bytes, 1), *flags)
        if int(error) == nvidia.NO_MEMORY:
            what = f"{name}: {n_bytes / MIB:.1f} MiB are asked for"
            if flags:
                raise ModelError("no_memory", f"{what}, of pinned memory of the host", lack_bytes=n_bytes)
            lack = max(1, n_bytes - self.free_bytes())  # 1: it is in pieces
            free = f"{(self.free_bytes()) / MIB:.1f} MiB of the GPU's memory are free"
            raise ModelError("no_memory", f"{what}, {free}: {lack / MIB:.1f} MiB are missing", lack_bytes=lack)
        if int(error):
            raise EngineError("engine_failed", f"{name}: {self._text(error)}")
        return int(pointer)

    def _text(self, error: Any) -> str:
        _, text = self.cuda.cudaGetErrorString(error)
        return f"{text.decode()} ({int(error)})"


class DeviceMemory:
    """Memory of the device, given back when this is collected."""

    def __init__(self, runtime: Runtime, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.pointer = runtime.allocate(n_bytes)
        weakref.finalize(self, runtime.free, self.pointer)


class HostMemory:
    """Pinned memory of the host, given back when nobody holds it."""

    def __init__(self, runtime: Runtime, n_bytes: int) -> None:
        self.pointer = runtime.allocate_host(n_bytes)
        weakref.finalize(self, runtime.free_host, self.pointer)
        self.bytes: Array = np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(self.pointer))
