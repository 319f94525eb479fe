"""Why CUDA cannot be used here, as far as Linux and the driver tell."""

from __future__ import annotations

import os
from pathlib import Path

from luced.errors import ModelError

ROOT = Path("/")
MODULE = "proc/driver/nvidia/version"  # there when the kernel module is loaded
# Any of them: a driver is here. The last two: of WSL, and of chips that are CPU and GPU in one.
SIGNS = (MODULE, "dev/nvidiactl", "dev/dxg", "dev/nvhost-gpu")
UVM = "nvidia-uvm"
VENDOR = "0x10de"

# Codes of cudaError_t that have a cause of their own.
NO_MEMORY, OLD_DRIVER, UNAVAILABLE, NO_DEVICE, NOT_READY, MISMATCH = 2, 35, 46, 100, 802, 803
CAUSES = {
    NO_MEMORY: ("the GPU has no memory left, not even to be opened", "end what holds it: nvidia-smi lists it"),
    UNAVAILABLE: ("another process has the GPU for itself alone", "end that, or: nvidia-smi --compute-mode DEFAULT"),
    NO_DEVICE: ("the driver shows no GPU", "see that CUDA_VISIBLE_DEVICES hides none, and what `nvidia-smi -L` lists"),
    NOT_READY: ("the GPUs are not ready", "start nvidia-fabricmanager"),
    MISMATCH: ("the driver's kernel module and its libraries are of different versions", "reboot: it was updated"),
}
AFTER_SUSPEND = (
    "`journalctl -k -g NVRM` may say why; after a suspend: modprobe --remove nvidia-uvm, then modprobe nvidia-uvm"
)


def is_here() -> bool:
    """Whether there is a GPU, or a driver for one."""
    return _has_driver() or _has_card()


def check_driver() -> None:
    """ModelError: no driver is here."""
    if not _has_driver():
        if _has_card():
            raise _no_device("there is an NVIDIA GPU but no driver for it", "install it, then: modprobe nvidia")
        raise _no_device("there is no NVIDIA GPU and no driver for one", "compute on the CPU: device = cpu")


def explain(error: int, text: str, driver_version: int, runtime_version: int) -> ModelError:
    """What the error code of the CUDA runtime with this text comes from. Versions as CUDA has them: 13020 is 13.2; a
    driver of version 0 has no library."""
    if (node := _closed_node()) is not None:
        return node
    if error == OLD_DRIVER:
        need = _version(runtime_version)
        if driver_version == 0:
            return _no_device("libcuda.so.1, a part of the driver, is missing", f"install the driver, for CUDA {need}")
        what = f"the driver is older than the library: it is for CUDA {_version(driver_version)}, not {need}"
        return _no_device(what, "install a newer driver")
    return _no_device(*CAUSES.get(error, (f"the driver fails: {text}", AFTER_SUSPEND)))


def _closed_node() -> ModelError | None:
    """The first device node that is missing, or that we may not open."""
    if not (ROOT / MODULE).exists():  # another kind of driver, with other nodes
        return None
    cards = sorted(path.name for path in (ROOT / "dev").glob("nvidia[0-9]*"))
    for name in ("nvidiactl", *(cards or ["nvidia0"]), UVM):
        path = ROOT / "dev" / name
        if not path.exists():
            if name == UVM:
                return _no_device(
                    f"nvidia-uvm is missing: there is no {path}", "modprobe nvidia-uvm; nvidia-modprobe -u -c 0"
                )
            return _no_device(
                f"the driver is loaded, but there is no {path}", "nvidia-modprobe, or give it to the container"
            )
        if not os.access(path, os.R_OK | os.W_OK):
            return _no_device(f"no permission on {path}", _permit(path))
    return None


def _permit(path: Path) -> str:
    if path.stat().st_mode & 0o060 == 0o060 and (group := _group(path)) != "root":
        return f"usermod --append --groups {group} USER, and log in again"
    return f"chmod 0666 {path}"


def _group(path: Path) -> str:
    try:
        return path.group()
    except KeyError:  # a container need not know it
        return str(path.stat().st_gid)


def _has_driver() -> bool:
    return any((ROOT / sign).exists() for sign in SIGNS)


def _has_card() -> bool:
    """Whether a display controller on the PCI bus is NVIDIA's."""
    cards = (
        path.parent for path in (ROOT / "sys/bus/pci/devices").glob("*/vendor") if path.read_text().strip() == VENDOR
    )
    return any((card / "class").read_text().startswith("0x03") for card in cards)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _no_device(what: str, remedy: str) -> ModelError:
    return ModelError("no_device", what, remedy)
