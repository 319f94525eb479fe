"""Which device a name means: `cpu`, or `cuda:1` (`cuda` is the first)."""

from __future__ import annotations

from luced.device.device import Device
from luced.errors import ModelError


def open_device(name: str, isa: str = "auto", n_threads: int = 0) -> Device:
    """isa, n_threads: of the CPU. ModelError: no such device, or it cannot be used."""
    kind, _, index = name.partition(":")
    if kind == "cpu" and not index:
        from luced.device.cpu import Cpu

        return Cpu(isa, n_threads)
    if kind == "cuda" and (not index or index.isdigit()):
        from luced.device.cuda import Cuda

        return Cuda(int(index or 0))
    raise ModelError("no_device", f"there is no device {name!r}", "say cpu, cuda or cuda:1")
