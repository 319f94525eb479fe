"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from luced.errors import RequestError

MAX_CHARS = 1024  # of a stop string
FIRST_MARK, LAST_MARK = 0xD800, 0xDFFF  # lone surrogates, which no text has


class Stops:
    """Cuts a text where the first stop string to be complete begins (of those that end together, the longest).

    Where the text is cut does not depend on its pieces. Each push is one token's text, which may be empty.
    `control_names`: of tokens that have no text. A stop string with such a name means the token too, not only a text
    that spells it.
    """

    def __init__(self, stops: Sequence[str], control_names: frozenset[str] = frozenset()) -> None:
        if "" in stops:
            raise RequestError("bad_parameter", "a stop string is empty", "leave it out")
        if (longest := max(map(len, stops), default=0)) > MAX_CHARS:
            what = f"a stop string has {longest} characters, at most {MAX_CHARS} are possible"
            raise RequestError("bad_parameter", what, "take its beginning")
        marked, self._marks = _marked(tuple(stops), control_names)
        self._stops = [_pattern(stop) for stop in dict.fromkeys([*stops, *marked])]
        self._matched = [0] * len(self._stops)  # characters of each that the text ends with
        self._held = ""  # the end of the text, which may yet be part of a stop string
        self._n_chars = 0
        self._n_pushed = 0
        self._pieces: list[tuple[int, int]] = []  # (first character, number) of the tokens whose text may be held
        self.found: str | None = None  # the stop string that ended the text, with marks for control tokens
        self.n_tokens = 0  # tokens that contributed to the text that has been returned

    def push(self, text: str, control: str = "") -> str:
        """The text that may be shown now. Once `found` is set, nothing more may be pushed. `control`: the name of a
        control token that comes here."""
        assert self.found is None
        self._n_pushed += 1
        if not self._stops:
            if text:
                self.n_tokens = self._n_pushed
            return text
        if text:
            self._pieces.append((self._n_chars, self._n_pushed))
        n_found = 0  # characters of the text that the stop string takes
        for i, char in enumerate(text + self._marks.get(control, ""), 1):
            for at, (stop, failures, n_shown) in enumerate(self._stops):
                if i > len(text) and char not in stop:  # to this one the control token is nothing
                    continue
                n = self._matched[at]
                while n and stop[n] != char:
                    n = failures[n - 1]
                n += stop[n] == char
                self._matched[at] = n
                if n == len(stop) and (self.found is None or n_shown[n] > n_found):
                    self.found, n_found = stop, n_shown[n]
            if self.found is not None:
                return self._show(self._held + text[:i], n_found)
        held = (n_shown[n] for n, (_, _, n_shown) in zip(self._matched, self._stops, strict=True))
        return self._show(self._held + text, max(held, default=0))

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
def _marked(stops: tuple[str, ...], control_names: frozenset[str]) -> tuple[list[str], dict[str, str]]:
    """The stop strings with a mark in place of each name of a control token, and the marks by name."""
    text = "\0".join(stops)
    names = sorted((name for name in control_names if name in text), key=len, reverse=True)
    marks = {name: chr(mark) for name, mark in zip(names, range(FIRST_MARK, LAST_MARK + 1), strict=False)}
    for name, mark in marks.items():
        stops = tuple(stop.replace(name, mark) for stop in stops)
    return list(stops), marks


@lru_cache(64)
def _pattern(stop: str) -> tuple[str, list[int], list[int]]:
    """The stop string; for each of its prefixes the longest shorter prefix that it ends with (Knuth, Morris and Pratt);
    for each number of its characters how many are no marks."""
    failures = [0] * len(stop)
    n = 0
    for i in range(1, len(stop)):
        while n and stop[n] != stop[i]:
            n = failures[n - 1]
        n += stop[n] == stop[i]
        failures[i] = n
    n_shown = accumulate((not FIRST_MARK <= ord(char) <= LAST_MARK for char in stop), initial=0)
    return stop, failures, list(n_shown)
