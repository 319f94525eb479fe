"""How much memory can still be had: what the machine has, what control groups leave, and this process's own limits."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

NO_LIMIT = 1 << 62
ROOT = Path("/")


class Groups(NamedTuple):
    """One version of control groups: the controller, where it is mounted, the files of a group that tell its limit and
    its use, and what of that in memory.stat the kernel takes back when it must."""

    controller: str
    mount: str
    limit: str
    usage: str
    files: tuple[str, ...]


VERSIONS = (
    Groups("", "sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")),
    Groups(
        "memory",
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


def bytes_left(n_untouched: int) -> int:
    """`n_untouched`: bytes that this process has allocated and the kernel still counts as free."""
    shared = min(_kib(ROOT / "proc/meminfo", "MemAvailable"), free_in_groups(ROOT)) - n_untouched
    return max(0, min(shared, _left(resource.RLIMIT_AS, "VmSize"), _left(resource.RLIMIT_DATA, "VmData")))


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    return _kib(ROOT / "proc/self/status", "RssAnon", 0)


def free_in_groups(root: Path) -> int:
    """What the control groups leave that this process is in. `root`: where proc and sys are."""
    least = NO_LIMIT
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for version in VERSIONS:
            if version.controller in controllers.split(","):
                mount = root / version.mount
                own = mount / path.lstrip("/")
                groups = [group for group in (own, *own.parents) if group.is_relative_to(mount)]
                least = min([least, *(_free_in(group, version) for group in groups)])
    return least


def _free_in(group: Path, version: Groups) -> int:
    limit = "".join(_lines(group / version.limit))
    usage = "".join(_lines(group / version.usage))
    if not limit.isdigit() or not usage.isdigit():  # max, or no such file
        return NO_LIMIT
    stat = dict(line.partition(" ")[::2] for line in _lines(group / "memory.stat"))
    return int(limit) - int(usage) + sum(int(stat.get(name, 0)) for name in version.files)


def _left(limit: int, used: str) -> int:
    soft, _ = resource.getrlimit(limit)
    return NO_LIMIT if soft == resource.RLIM_INFINITY else soft - _kib(ROOT / "proc/self/status", used, 0)


def _kib(file: Path, name: str, default: int = NO_LIMIT) -> int:
    """Bytes of a line `name:  n kB`."""
    for line in _lines(file):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return default


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
