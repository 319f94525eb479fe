"""What a terminal needs and a pipe must not get."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from luce.results import Progress

# Control characters of an answer are shown, not obeyed: it may hold whatever a web page has put into the question.
_VISIBLE = {c: 0x2400 + c for c in range(0x20) if chr(c) not in "\n\t"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    return text.translate(_VISIBLE)


class Output:
    """Standard output, as UTF-8 whatever the locale says, and piece by piece."""

    def __init__(self) -> None:
        self._is_in_line = False
        self.is_terminal = sys.stdout.isatty()

    def write(self, text: str) -> None:
        if text:
            self._is_in_line = not text.endswith("\n")  # first, since Ctrl-C may come at any point
            sys.stdout.buffer.write((visible(text) if self.is_terminal else text).encode())
            sys.stdout.buffer.flush()

    def end_line(self) -> None:
        if self._is_in_line:
            self.write("\n")


class StatusLine:
    """One line that is written over and goes away; nothing where `stream` is no terminal that can do so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._can_show = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_shown = False

    def show(self, text: str) -> None:
        if self._can_show:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{text[:width]}")
            self._stream.flush()
            self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False


def describe(progress: Progress) -> str:
    """What a request waits for, in a few words."""
    if progress.phase == "load":
        return f"loading the model: {_gigabytes(progress.done)} of {_gigabytes(progress.total)} GB"
    if progress.phase == "queue":
        return f"waiting: {progress.done} {'request' if progress.done == 1 else 'requests'} ahead"
    cached = f" ({progress.cached} cached)" if progress.cached else ""
    return f"reading the question: {progress.done} of {progress.total} tokens{cached}"


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f}" if n_bytes < 10e9 else f"{n_bytes / 1e9:.1f}"
