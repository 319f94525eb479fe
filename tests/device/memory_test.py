"""How much memory is left, where control groups and limits of the process say less than the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from luced.device import memory

MIB = 1 << 20
V2 = {
    "memory.max": "max",
    "memory.current": str(100 * MIB),
    "memory.stat": f"anon 5\ninactive_file {30 * MIB}\nactive_file {MIB}\n",
}


def group(root: Path, path: str, files: dict[str, str]) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content + "\n")


def belongs_to(root: Path, *lines: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("own", "parent", "left"),
    [
        ("max", "max", memory.NO_LIMIT),
        (str(512 * MIB), "max", 443 * MIB),  # 512 - 100, and 31 of files come back
        ("max", str(512 * MIB), 443 * MIB),
        (str(512 * MIB), str(200 * MIB), 131 * MIB),
    ],
)
def test_the_tightest_group_counts(tmp_path: Path, own: str, parent: str, left: int) -> None:
    belongs_to(tmp_path, "0::/system.slice/luced.service")
    group(tmp_path, "system.slice/luced.service", V2 | {"memory.max": own})
    group(tmp_path, "system.slice", V2 | {"memory.max": parent})
    group(tmp_path, "", {})
    assert memory.free_in_groups(tmp_path) == left


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    belongs_to(tmp_path, "5:cpu,cpuacct:/a", "4:memory:/a", "0::/")
    files = {
        "memory.limit_in_bytes": str(512 * MIB),
        "memory.usage_in_bytes": str(100 * MIB),
        "memory.stat": f"total_inactive_file {30 * MIB}\ntotal_active_file {MIB}",
    }
    group(tmp_path, "memory/a", files)
    group(tmp_path, "memory", files | {"memory.limit_in_bytes": "9223372036854771712"})
    assert memory.free_in_groups(tmp_path) == 443 * MIB


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert memory.free_in_groups(tmp_path) == memory.NO_LIMIT


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_of_the_process(limit: str) -> None:
    code = (
        f"import resource; resource.setrlimit(resource.{limit}, (1 << 30, 1 << 30));"
        "from luced.device import memory; print(memory.bytes_left(0), memory.bytes_left(1 << 50))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left, nothing = map(int, shown.stdout.split())
    assert 0 < left < 1 << 30
    assert nothing == 0
