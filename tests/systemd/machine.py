"""A real systemd in namespaces of its own, with our units, a tiny model and journald."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import luce
import luce_shell
import luced
from tests.tinygguf import tiny_chat_model

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
NAMESPACES = ("unshare", "--mount", "--pid", "--cgroup", "--fork", "--kill-child")
SYSTEMD = Path("/lib/systemd/systemd")
# Of the machine around it: what ours need, and no more.
BORROWED = ("sysinit.target", "basic.target", "sockets.target", "shutdown.target", "systemd-journald.service")
BORROWED_SOCKETS = ("systemd-journald.socket", "systemd-journald-dev-log.socket")
WAIT_S = 60
USER = "alice"  # of the machine; starts as user.service, what logind does elsewhere
USER_MANAGER = f"""
[Service]
Type=notify
User={USER}
Environment=XDG_RUNTIME_DIR=/run/user/{USER}
RuntimeDirectory=user/{USER}
RuntimeDirectoryMode=0700
Delegate=yes
KillMode=mixed
ExecStart={SYSTEMD} --user
"""


def why_not() -> str:
    """Why a real systemd cannot run here; empty: it can."""
    if os.geteuid() != 0:
        return "not root: a real systemd needs namespaces"
    if missing := [name for name in ("unshare", "nsenter", "systemctl", "systemd-sysusers") if not shutil.which(name)]:
        return f"there is no {', '.join(missing)}"
    if not SYSTEMD.exists():
        return f"there is no {SYSTEMD}"
    if subprocess.run(
        [*NAMESPACES, "mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"], capture_output=True
    ).returncode:
        return "namespaces or cgroup2 cannot be had here"
    return ""


def render(unit: Path, luced_path: str) -> str:
    """A unit as `make install` writes it."""
    return unit.read_text().replace("/usr/local/bin/luced", luced_path)


class Machine:
    """Runs within `with`. `log` is what its systemd says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sources = sorted({str(Path(m.__path__[0]).parent) for m in (luced, luce, luce_shell)})
        self._readable = sorted({sys.base_prefix, sys.prefix, str(ROOT), *self._sources})
        self._write_units()
        etc = folder / "etc"
        for name in ("sysusers", "tmpfiles"):
            (etc / f"{name}.d").mkdir(parents=True)
            shutil.copy(UNITS / f"{name}.conf", etc / f"{name}.d" / "luced.conf")
        (etc / "sysusers.d" / "user.conf").write_text(f"u {USER} - - /home/{USER} /bin/sh\n")
        (folder / "models").mkdir()
        tiny_chat_model(folder / "models" / "tiny.gguf")
        (etc / "luce").mkdir()
        (etc / "luce" / "luced.toml").write_text('default_model = "tiny"\n')

    def __enter__(self) -> Self:
        command = [*NAMESPACES, "bash", str(Path(__file__).with_name("boot.sh")), str(self.folder), *self._readable]
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self.pid = self.wait(self._find_pid)
            self.wait((self.root / "run/systemd/private").exists)
            self.systemctl("start", "systemd-journald.service", "luced.socket")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    @property
    def root(self) -> Path:
        """Its files, from here."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def socket(self) -> Path:
        return self.root / "run/luce/luced.sock"

    def client(self) -> luce.Client:
        return luce.Client(self.socket, timeout=WAIT_S)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in it."""
        enter = ("nsenter", "--target", str(self.pid), "--mount", "--pid", "--cgroup")
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=WAIT_S)

    def systemctl(self, *words: str) -> str:
        done = self.run("systemctl", "--no-pager", *words)
        assert done.returncode == 0, (words, done.stderr, self.log(), self.journal())
        return done.stdout

    def user_systemctl(self, *words: str) -> str:
        """Of USER's own systemd."""
        as_user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
        done = self.run(*as_user, "env", f"XDG_RUNTIME_DIR=/run/user/{USER}", "systemctl", "--user", *words)
        assert done.returncode == 0, (words, done.stderr, self.log())
        return done.stdout

    def show(self, prop: str, unit: str = "luced.service") -> str:
        return self.systemctl("show", "--value", "--property", prop, unit).strip()

    def journal(self) -> str:
        return self.run("journalctl", "--no-pager", "--output", "cat", "--unit", "luced.service").stdout

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def wait(self, ask: Callable[[], object]) -> int:
        """Until `ask` says something, which is returned: systemd tells us of nothing."""
        ends_at = time.monotonic() + WAIT_S
        while not (answer := ask()):
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < ends_at, (ask, self.log())
            time.sleep(0.05)
        return int(answer) if isinstance(answer, int) else 1

    def _find_pid(self) -> int:
        """Of its process 1, here."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        is_there = bool(children) and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd"
        return int(children[0]) if is_there else 0

    def _end(self) -> None:
        self._process.kill()  # --kill-child: and all within
        self._process.wait()

    def _write_units(self) -> None:
        system = self.folder / "system"
        system.mkdir()
        command = self.folder / "luced"
        command.write_text(
            f"#!/bin/sh\nPYTHONPATH={':'.join(self._sources)} PYTHONDONTWRITEBYTECODE=1\n"
            f'export PYTHONPATH PYTHONDONTWRITEBYTECODE\nexec {sys.executable} -P -m luced "$@"\n'
        )
        command.chmod(0o755)
        self.folder.chmod(0o755)
        for unit in UNITS.glob("luced.*"):
            (system / unit.name).write_text(render(unit, "/run/given/luced"))
        (system / "luced.service.d").mkdir()
        # A checkout in /tmp would be hidden by PrivateTmp=.
        hidden = [folder for folder in self._readable if folder.startswith(("/tmp/", "/var/tmp/"))]
        binds = "".join(f"BindReadOnlyPaths={folder}\n" for folder in hidden)
        (system / "luced.service.d" / "checkout.conf").write_text(f"[Service]\n{binds}")
        for name in (*BORROWED, *BORROWED_SOCKETS):
            shutil.copy(SYSTEMD.parent / "system" / name, system)
        (system / "user.service").write_text(USER_MANAGER)
        shutil.copytree(UNITS / "user", self.folder / "user")
        (system / "default.target").write_text("[Unit]\nDescription=the end of the start\n")
