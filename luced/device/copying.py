"""How fast a device copies its memory: what the floor of a step is counted with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from luced.device.cpu import Cpu
from luced.device.cuda import Cuda
from luced.device.device import Device

CPU_BYTES = 512 << 20  # of each of two buffers: more than a cache holds
GPU_BYTES = 4 << 30
N_COPIES = 4  # between two looks at the clock
N_RUNS = 5


def copy_rate(device: Device) -> float:
    """Bytes per second, counted as read and as written, of copies within the device's memory. Median of N_RUNS."""
    assert isinstance(device, Cpu | Cuda)
    most = GPU_BYTES if isinstance(device, Cuda) else CPU_BYTES
    n_bytes = min(most, device.free_bytes() // 8) & ~4095
    to, source = device.reserve(n_bytes), device.reserve(n_bytes)
    copy = _on_gpu(device, to, source) if isinstance(device, Cuda) else _on_cpu(device, to, source)
    copy()  # a page's first use is slow
    rates = []
    for _ in range(N_RUNS):
        begin = time.perf_counter()
        copy()
        rates.append(2 * N_COPIES * n_bytes / (time.perf_counter() - begin))
    return statistics.median(rates)


def _on_gpu(device: Cuda, to: Any, source: Any) -> Callable[[], None]:
    def copy() -> None:
        for _ in range(N_COPIES):
            device.runtime.copy(to.pointer, source.pointer, to.n_bytes)
        device.runtime.synchronize()

    return copy


def _on_cpu(device: Cpu, to: Any, source: Any) -> Callable[[], None]:
    """Each thread copies its part; numpy lets others run meanwhile."""
    source.bytes[:] = 1  # else all its pages are one page of zeros
    threads = ThreadPoolExecutor(device.n_threads)
    parts = list(zip(*(np.array_split(one.bytes, device.n_threads) for one in (to, source)), strict=True))

    def copy() -> None:
        for _ in range(N_COPIES):
            list(threads.map(lambda part: np.copyto(*part), parts))

    return copy
