"""The fence around an answer that is one block of code."""

from __future__ import annotations

import re


class Fence:
    """Takes the fence off an answer that is one block of code; any other stays as it is. In pieces."""

    _CLOSE = re.compile(r"\n```")

    def __init__(self) -> None:
        self.is_closed = False  # what follows is dropped
        self._is_open: bool | None = None  # None: not known yet
        self._held = ""
        self._n_dropped = 0  # characters at the beginning of what is held that are not shown

    def push(self, text: str) -> str:
        """What can be shown now."""
        if self.is_closed:
            return ""
        self._held += text
        if self._is_open is None:
            self._begin()
        if self._is_open is None:
            return ""
        if not self._is_open:
            return self._take(len(self._held))
        if close := self._CLOSE.search(self._held):
            self.is_closed = True
            return self._take(close.start())
        kept = next((n for n in (3, 2, 1) if self._held.endswith("\n```"[:n])), 0)
        return self._take(len(self._held) - kept)

    def flush(self) -> str:
        """What was held back, at the end of the answer."""
        return "" if self.is_closed else self._take(len(self._held))

    def _begin(self) -> None:
        """Whether the answer begins with a fence; its line goes."""
        head = self._held.lstrip()
        if head.startswith("```"):
            _, newline, rest = head.partition("\n")
            if newline:  # which may begin the end of a fence that holds nothing
                self._is_open, self._held, self._n_dropped = True, newline + rest, 1
        elif not "```".startswith(head):
            self._is_open = False

    def _take(self, n: int) -> str:
        taken, self._held = self._held[self._n_dropped : n], self._held[n:]
        self._n_dropped = max(0, self._n_dropped - n)
        return taken
