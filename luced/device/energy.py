"""What a GPU has used of energy: the counter of NVML, through cuda-python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luced.device.cuda import Cuda
from luced.device.device import Device

BUS_ID_CHARS = 32


class NoCounterError(Exception):
    """Energy cannot be measured; the text says why."""


def nvml() -> Any:
    """cuda-python's module of NVML. NoCounterError: it is not there."""
    try:
        from cuda.bindings import nvml
    except ImportError as error:
        raise NoCounterError(f"cuda-python has no NVML: {error}") from error
    return nvml


def counter(device: Device) -> Callable[[], float]:
    """Gives the joules that the device has used since its driver was loaded. NoCounterError: it does not count them."""
    if not isinstance(device, Cuda):
        raise NoCounterError(f"{device.name} has no counter")
    library = nvml()
    error, bus_id = device.runtime.cuda.cudaDeviceGetPCIBusId(BUS_ID_CHARS, int(device.name.partition(":")[2]))
    if int(error):
        raise NoCounterError(f"the driver does not say where {device.name} is")
    try:
        library.init_v2()
        # By the bus: NVML counts the devices that CUDA_VISIBLE_DEVICES hides too.
        handle = library.device_get_handle_by_pci_bus_id_v2(bus_id.partition(b"\0")[0].decode())
        library.device_get_total_energy_consumption(handle)
    except (library.NvmlError, RuntimeError) as problem:  # the latter: there is no libnvidia-ml
        raise NoCounterError(f"NVML: {problem}") from problem
    return lambda: float(library.device_get_total_energy_consumption(handle)) / 1e3
