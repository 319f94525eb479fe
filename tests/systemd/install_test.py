"""`make install` and what undoes it, into a folder; pip is replaced, because a wheel takes minutes to build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.systemd.machine import ROOT

# Of .venv: pip puts one command into the environment that --python names, the rest is Python's.
PYTHON = f"""#!/bin/sh
if [ "$2" = pip ]; then
  for name in luced luce luce-ask; do printf '#!%s\\n' "$4" >"$(dirname "$4")/$name"; done
  exit
fi
exec {sys.executable} "$@"
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What `make` needs of the source tree, with a wheel that is built."""
    source = tmp_path / "source"
    for name in ("systemd", "clients/shell/share"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    python = source / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    return source


def make(source: Path, *words: str | Path, home: Path | None = None) -> str:
    """What it says."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home or source / "home")}
    is_built = ("--old-file=.venv/.made", "--old-file=dist/.made")
    for name in (".venv/.made", "dist/.made"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).touch()
    done = subprocess.run(
        ["make", *is_built, *map(str, words)], cwd=source, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def test_for_the_machine(source: Path, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    words = (f"DESTDIR={stage}", "PREFIX=/opt/luced")
    assert "systemctl enable --now luced.socket" in make(source, "install", *words)
    installed = files(stage)
    assert {f"etc/systemd/system/luced.{kind}" for kind in ("service", "socket")} <= installed
    assert {"etc/sysusers.d/luced.conf", "etc/tmpfiles.d/luced.conf", "opt/luced/share/man/man1/luced.1"} <= installed
    assert os.readlink(stage / "opt/luced/bin/luced") == "/opt/luced/lib/luced/bin/luced"
    assert (stage / "opt/luced/lib/luced/bin/luced").read_text() == "#!/opt/luced/lib/luced/bin/python\n"
    assert "\nExecStart=/opt/luced/bin/luced serve\n" in (stage / "etc/systemd/system/luced.service").read_text()
    assert str(stage) not in (stage / "opt/luced/lib/luced/pyvenv.cfg").read_text()

    make(source, "install", *words)
    assert files(stage) == installed

    kept = stage / "var/lib/luce/models/tiny.gguf"
    kept.parent.mkdir(parents=True)
    kept.touch()
    others = stage / "opt/luced/bin/luce"
    others.unlink()
    others.write_text("not ours")
    assert "left: models in /var/lib/luce" in make(source, "uninstall", *words)
    assert files(stage) == {"var/lib/luce/models/tiny.gguf", "opt/luced/bin/luce"}
    make(source, "uninstall", *words)


def test_for_a_user(source: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    make(source, "install-user", home=home)
    installed = files(home)
    assert {f".config/systemd/user/luced.{kind}" for kind in ("service", "socket")} <= installed
    assert os.readlink(home / ".local/bin/luced") == str(home / ".local/share/luced/venv/bin/luced")
    assert ".local/share/bash-completion/completions/luced" in installed

    make(source, "install-user", home=home)
    assert files(home) == installed

    model = home / ".local/share/luce/models/tiny.gguf"
    model.parent.mkdir(parents=True)
    model.touch()
    assert "left: models" in make(source, "uninstall-user", home=home)
    assert files(home) == {".local/share/luce/models/tiny.gguf"}
