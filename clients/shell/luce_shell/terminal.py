"""What a terminal needs and a pipe must not get."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from luce.results import Progress
from luce_shell.environment import terminal_is_dumb

# Control characters of an answer are shown, not obeyed: it may hold whatever a web page has put into the question.
_VISIBLE = {c: 0x2400 + c for c in range(0x20) if chr(c) not in "\n\t"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_VISIBLE |= dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)  # bidi

SAME_PHASE_S = 0.05  # between two writings of the status line
SURE_S = 0.2  # after which a rate is worth telling


def visible(text: str) -> str:
    return text.translate(_VISIBLE)


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Columns and lines; the usual ones where the terminal does not know. (shutil's costs its import.)"""
    size = os.get_terminal_size(stream.fileno())
    return os.terminal_size((size.columns or 80, size.lines or 24))


class Output:
    """Standard output, as UTF-8 whatever the locale says, and piece by piece."""

    def __init__(self) -> None:
        self._is_in_line = False
        self.is_terminal = sys.stdout.isatty()

    def write(self, text: str) -> None:
        self._put(visible(text) if self.is_terminal else text)

    def close(self) -> None:
        """The end of the answer: a newline where it does not end with one."""
        self.break_line()

    def break_line(self) -> None:
        if self._is_in_line:
            self._put("\n")

    def _put(self, text: str) -> None:
        if text:
            self._is_in_line = not text.endswith("\n")  # first, since Ctrl-C may come at any point
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()


class StatusLine:
    """One line that is written over and goes away; nothing where `stream` is no terminal that can do so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._can_show = stream.isatty() and not terminal_is_dumb()
        self._is_shown = False
        self._phase = ""
        self._begin_s = self._shown_s = 0.0
        self._begin_done = 0

    def show(self, progress: Progress) -> None:
        if not self._can_show:
            return
        now = time.monotonic()
        if progress.phase != self._phase:
            self._phase, self._begin_s, self._begin_done = progress.phase, now, progress.done
        elif now - self._shown_s < SAME_PHASE_S:
            return
        elapsed = now - self._begin_s
        rate = (progress.done - self._begin_done) / elapsed if elapsed > SURE_S else 0.0
        width = terminal_size(self._stream).columns - 1
        self._stream.write(f"\r\x1b[K{describe(progress, rate)[:width]}")
        self._stream.flush()
        self._is_shown, self._shown_s = True, now

    def clear(self) -> None:
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False


def describe(progress: Progress, rate: float) -> str:
    """What a request waits for, in a few words. rate: of its bytes or tokens, each second; 0: not known."""
    if progress.phase == "load":
        speed = f", {_gigabytes(rate)} GB/s" if rate > 0 else ""
        return f"loading the model: {_gigabytes(progress.done)} of {_gigabytes(progress.total)} GB{speed}"
    if progress.phase == "queue":
        return f"waiting: {progress.done} {'request' if progress.done == 1 else 'requests'} ahead"
    if progress.phase == "restart":
        return "the engine has died and is started again"
    cached = f" ({progress.cached} cached)" if progress.cached else ""
    speed = f", {rate:.0f} tokens/s" if rate > 0 else ""
    return f"reading the question: {progress.done} of {progress.total} tokens{cached}{speed}"


def _gigabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f}" if n_bytes < 10e9 else f"{n_bytes / 1e9:.1f}"
