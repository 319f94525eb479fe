"""What systemd-analyze says of the units."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.systemd.machine import UNITS, render

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")

MAX_EXPOSURE = 25  # in tenths


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *map(str, words)], capture_output=True, text=True)


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    """The system's units, with a command that is there."""
    for unit in UNITS.glob("luced.*"):
        (tmp_path / unit.name).write_text(render(unit, "/bin/true"))
    return tmp_path


def test_the_systems_units_are_correct(rendered: Path) -> None:
    units = rendered / "luced.service", rendered / "luced.socket"
    done = analyze("verify", "--man=no", "--recursive-errors=yes", *units)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_users_units_are_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = tmp_path / ".local/bin/luced"
    command.parent.mkdir(parents=True)
    command.symlink_to("/bin/true")
    units = UNITS / "user/luced.service", UNITS / "user/luced.socket"
    done = analyze("--user", "verify", "--man=no", "--recursive-errors=yes", *units)
    assert (done.returncode, done.stderr) == (0, "")


def test_little_is_exposed(rendered: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", rendered / "luced.service")
    assert done.returncode == 0, done.stdout


def test_gpus_are_not_hidden(rendered: Path) -> None:
    text = (rendered / "luced.service").read_text()
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert not {"PrivateDevices", "PrivateUsers", "ProcSubset", "MemoryDenyWriteExecute"} & settings.keys()
    for group in ("nvidia*", "drm", "kfd"):
        assert f"DeviceAllow=char-{group} rw" in text
