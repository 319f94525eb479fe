"""What each token contributes to a text, in flat memory that goes from one process to another as it is."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from luced.errors import RequestError


class Pieces:
    """All that is needed to make text of tokens. `data` has the bytes of all tokens, which end at `ends` (packed);
    those that `hidden` marks with 1 (control tokens, by name) are in a text only if they are asked for."""

    def __init__(self, data: bytes, ends: bytes, hidden: bytes, has_text: bool, add_space_prefix: bool) -> None:
        self.n_vocab = len(hidden)
        self.has_text = has_text
        self.add_space_prefix = add_space_prefix
        self._data = data
        self._ends = unpack(ends)
        self._hidden = hidden

    def to_wire(self) -> dict[str, Any]:
        """The arguments that make it."""
        return {
            "data": self._data,
            "ends": pack(self._ends),
            "hidden": self._hidden,
            "has_text": self.has_text,
            "add_space_prefix": self.add_space_prefix,
        }

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """As the tokenizer's."""
        if self._hidden[token] and not special:
            return b""
        return self._data[self._ends[token - 1] if token else 0 : self._ends[token]]

    @cached_property
    def control_names(self) -> frozenset[str]:
        """Of all control tokens."""
        names, token = set(), self._hidden.find(1)
        while token >= 0:
            names.add(self.control_name(token))
            token = self._hidden.find(1, token + 1)
        return frozenset(names - {""})

    def control_name(self, token: int) -> str:
        """Empty: it is none."""
        return self.token_bytes(token, special=True).decode() if self._hidden[token] else ""


def pack(numbers: Iterable[int]) -> bytes:
    """Numbers of 32 bits as a peer on this machine unpacks them. OverflowError: one is none."""
    return array("I", numbers).tobytes()


def unpack(data: bytes) -> array[int]:
    return array("I", data)


def no_text() -> RequestError:
    return RequestError("not_supported", "the model's file has no tokenizer", "send token ids")
