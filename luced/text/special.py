"""Finds the tokens that are matched as whole strings, before the text between them is tokenised."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from luced.text.vocabulary import Kind, Vocabulary

_KEY_CHARS = 8


class SpecialTokens:
    """Control, unknown and user-defined tokens of a vocabulary. Longer ones are matched first, over the whole text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        whole = (Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED)
        texts, kinds = vocabulary.texts, vocabulary.kinds
        found = [(i, texts[i]) for i, kind in enumerate(kinds) if kind in whole and texts[i]]
        self.control = frozenset(text for i, text in found if kinds[i] != Kind.USER_DEFINED)
        # Thousands of them may begin alike (<unused0> ...): one look for the beginning spares a look for each.
        self._by_key: dict[str, list[tuple[int, int, str]]] = {}
        for i, text in found:
            self._by_key.setdefault(text[:_KEY_CHARS], []).append((-len(text.encode()), i, text))

    def split(self, text: str, special: bool, literal: bytearray | None = None) -> Iterator[int | str]:
        """Token ids, and the text between them, in order. Without `special` control tokens stay text, as they do
        where `literal` (one byte for each character) is 1 in any of their characters."""
        taken = bytearray(len(text))
        matches: list[tuple[int, int, int]] = []
        for token, name in self._candidates(text):
            is_control = name in self.control
            if is_control and not special:
                continue
            begin = text.find(name)
            while begin >= 0:
                end = begin + len(name)
                if (other := taken.find(1, begin, end)) >= 0:
                    after = taken.find(0, other)
                    begin = text.find(name, after) if after >= 0 else -1
                elif is_control and literal is not None and literal.find(1, begin, end) >= 0:
                    begin = text.find(name, begin + 1)
                else:
                    matches.append((begin, end, token))
                    taken[begin:end] = b"\x01" * (end - begin)
                    begin = text.find(name, end)
        at = 0
        for begin, end, token in sorted(matches):
            if at < begin:
                yield text[at:begin]
            yield token
            at = end
        if at < len(text):
            yield text[at:]

    def control_spans(self, text: str) -> list[tuple[int, int]]:
        """(begin, end) of each part of `text` that is the name of a control token, or could become a part of one with
        what a template puts before and after the text, space at its ends stripped or not."""
        spans = []
        for _, name in self._candidates(text):
            begin = text.find(name) if name in self.control else -1
            while begin >= 0:
                spans.append((begin, begin + len(name)))
                begin = text.find(name, begin + 1)
        core = text.strip()
        first = text.find(core)
        last = first + len(core)
        heads, tails, longest = self._fragments
        for n in range(1, min(longest, len(core) + 1)):
            if core[:n] in tails:
                spans.append((first, first + n))
            if core[-n:] in heads:
                spans.append((last - n, last))
        if 0 < len(core) < longest and any(core in name for name in self.control):
            spans.append((first, last))
        return spans

    @cached_property
    def _fragments(self) -> tuple[set[str], set[str], int]:
        """What control tokens begin with and end with, and the length of the longest."""
        heads = {name[:n] for name in self.control for n in range(1, len(name))}
        tails = {name[n:] for name in self.control for n in range(1, len(name))}
        return heads, tails, max(map(len, self.control), default=0)

    def _candidates(self, text: str) -> list[tuple[int, str]]:
        """(id, text) of those that may occur in `text`, longest first."""
        groups = [group for key, group in self._by_key.items() if key in text]
        return [(i, name) for _, i, name in sorted(entry for group in groups for entry in group)]
