"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from luced.errors import RequestError

MAX_CHARS = 1024  # of a stop string


class Stops:
    """Cuts a text where the first stop string to be complete begins (of those that end together, the longest).

    Where the text is cut does not depend on its pieces. Each push is one token's text, which may be empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise RequestError("bad_parameter", "a stop string is empty", "leave it out")
        if (longest := max(map(len, stops), default=0)) > MAX_CHARS:
            what = f"a stop string has {longest} characters, at most {MAX_CHARS} are possible"
            raise RequestError("bad_parameter", what, "take its beginning")
        self._stops = [(stop, _failures(stop)) for stop in dict.fromkeys(stops)]
        self._matched = [0] * len(self._stops)  # characters of each that the text ends with
        self._held = ""  # the end of the text, which may yet be part of a stop string
        self._n_chars = 0
        self._n_pushed = 0
        self._pieces: list[tuple[int, int]] = []  # (first character, number) of the tokens whose text may be held
        self.found: str | None = None  # the stop string that ended the text
        self.n_tokens = 0  # tokens that contributed to the text that has been returned

    def push(self, text: str) -> str:
        """The text that may be shown now. Once `found` is set, nothing more may be pushed."""
        assert self.found is None
        self._n_pushed += 1
        if text:
            self._pieces.append((self._n_chars, self._n_pushed))
        for i, char in enumerate(text, 1):
            for at, (stop, failures) in enumerate(self._stops):
                n = self._matched[at]
                while n and stop[n] != char:
                    n = failures[n - 1]
                n += stop[n] == char
                self._matched[at] = n
                if n == len(stop) and (self.found is None or n > len(self.found)):
                    self.found = stop
            if self.found is not None:
                return self._show(self._held + text[:i], len(self.found))
        return self._show(self._held + text, max(self._matched, default=0))

    def flush(self) -> str:
        """No more text comes: what was held back. Empty if a stop string was found."""
        return "" if self.found is not None else self._show(self._held, 0)

    def _show(self, text: str, n_held: int) -> str:
        """All but the last n_held characters of `text`, which begins with what has not been shown yet."""
        begin = self._n_chars - len(self._held)
        shown, self._held = text[: len(text) - n_held], text[len(text) - n_held :]
        self._n_chars = begin + len(text)
        while self._pieces and self._pieces[0][0] < begin + len(shown):
            self.n_tokens = self._pieces.pop(0)[1]
        return shown


@lru_cache(64)  # all choices of a request have the same
def _failures(stop: str) -> list[int]:
    """For each prefix of `stop`: the longest shorter prefix that it ends with (Knuth, Morris and Pratt)."""
    failures = [0] * len(stop)
    n = 0
    for i in range(1, len(stop)):
        while n and stop[n] != stop[i]:
            n = failures[n - 1]
        n += stop[n] == stop[i]
        failures[i] = n
    return failures
