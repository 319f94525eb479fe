"""Which device a name means: `cpu`, `cuda:1` (`cuda` is the first), or `auto`."""

from __future__ import annotations

from typing import NamedTuple

from luced.device.device import Device
from luced.errors import ModelError


class Chosen(NamedTuple):
    """`passed_over`: what `auto` would rather have had, and why it has not."""

    device: Device
    passed_over: tuple[str, ...] = ()


def choose(name: str, isa: str = "auto", n_threads: int = 0) -> Chosen:
    """As open_device; auto: the fastest that works. CUDA's first device is the fastest that it has."""
    if name != "auto":
        return Chosen(open_device(name, isa, n_threads))
    try:
        return Chosen(open_device("cuda"))
    except ModelError as error:
        passed_over = (f"cuda: {error.message} ({error.remedy})",)
    return Chosen(open_device("cpu", isa, n_threads), passed_over)


def open_device(name: str, isa: str = "auto", n_threads: int = 0) -> Device:
    """isa, n_threads: of the CPU. ModelError: no such device, or it cannot be used."""
    kind, _, index = name.partition(":")
    if kind == "cpu" and not index:
        from luced.device.cpu import Cpu

        return Cpu(isa, n_threads)
    if kind == "cuda" and (not index or index.isdigit()):
        from luced.device.cuda import Cuda

        return Cuda(int(index or 0))
    raise ModelError("no_device", f"there is no device {name!r}", "say auto, cpu, cuda or cuda:1")
