"""The commands as processes: in a pipe, and on a terminal that remembers what it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = {"luce-ask": "luce_shell.ask", "luce": "luce_shell.luce"}


def command(program: str, *words: str) -> list[str]:
    return [sys.executable, "-m", MODULES[program], *words]


def environment(socket: Path, **more: str) -> dict[str, str]:
    """Nothing of the one who runs the tests: the log goes beside the socket."""
    packages = os.pathsep.join(str(ROOT / folder) for folder in ("clients/python", "clients/shell"))
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    mine = {"LUCE_SOCKET": str(socket), "XDG_DATA_HOME": str(socket.parent / "data"), "PYTHONPATH": packages}
    return {**known, **mine, "TERM": "xterm", **more}


def call(
    program: str, socket: Path, *words: str, stdin: bytes = b"", **more: str
) -> subprocess.CompletedProcess[bytes]:
    env = environment(socket, **more)
    return subprocess.run(command(program, *words), input=stdin, env=env, capture_output=True, timeout=60, check=False)


def open_terminal(width: int = 80, height: int = 24) -> tuple[int, int]:
    """(our end, the command's end)."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))
    return ours, its


def read_all(terminal: int) -> bytes:
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # EIO: nobody has the other end any more
            os.close(terminal)
            return shown


class Screen:
    """A terminal of one-cell characters that knows what we send: text, newlines, CR, cursor up, erase, styles."""

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._cells = [[" "] * width]
        self._row = self._column = 0
        self.scrolled: list[str] = []
        self.styles: set[str] = set()

    @property
    def lines(self) -> list[str]:
        """What has scrolled away and what is shown, without blanks at the ends."""
        lines = self.scrolled + ["".join(row).rstrip() for row in self._cells]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def feed(self, data: bytes) -> None:
        for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[^\x1b]", data.decode()):
            if part == "\n":
                self._down()
            elif part == "\r":
                self._column = 0
            elif part[0] != "\x1b":
                if self._column == self._width:
                    self._down()
                    self._column = 0
                self._cells[self._row][self._column] = part
                self._column += 1
            elif part[-1] == "m":
                self.styles.add(part)
            elif part[-1] == "A":
                self._row = max(0, self._row - int(part[2:-1]))
            elif part in ("\x1b[J", "\x1b[K"):
                self._cells[self._row][self._column :] = [" "] * (self._width - self._column)
                if part == "\x1b[J":
                    del self._cells[self._row + 1 :]
            else:
                raise AssertionError(f"what is {part!r}?")

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._cells):
            self._cells.append([" "] * self._width)
        if len(self._cells) > self._height:
            self.scrolled.append("".join(self._cells.pop(0)).rstrip())
            self._row -= 1
