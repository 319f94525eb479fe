"""Token ids to text as they come, never half a code point."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

from luced.text.pieces import Pieces, no_text

if TYPE_CHECKING:
    from luced.text.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of one sequence of tokens. Bytes that cannot become UTF-8 are U+FFFD as soon as that is certain.

    special: control tokens show their name. begins: the tokens begin a text (or an answer in a chat), so that the
    space which the tokenizer may have put before it is dropped; False where they continue one.
    """

    def __init__(self, tokenizer: Tokenizer | Pieces, special: bool = False, begins: bool = True) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._drop_space = begins and tokenizer.add_space_prefix
        self._decoder = _UTF8("replace")
        self._n_bytes = 0
        self._ends: list[int] = []  # of the tokens that are not released: bytes of all tokens up to each
        self.n_released = 0  # tokens all of whose text has been returned

    def push(self, token: int) -> str:
        """The text that is certain now; empty while a code point is incomplete."""
        data = self._tokenizer.token_bytes(token, self._special)
        if data and self._drop_space:
            data = data.removeprefix(b" ")
            self._drop_space = False
        self._n_bytes += len(data)
        if not self._ends and data.isascii():  # as most are: nothing waits, and nothing will
            self.n_released += 1
            return data.decode()
        self._ends.append(self._n_bytes)
        text = self._decoder.decode(data)
        self._release(self._n_bytes - len(self._decoder.getstate()[0]))
        return text

    def flush(self) -> str:
        """No more tokens come: what is left, an incomplete code point being U+FFFD."""
        text = self._decoder.decode(b"", final=True)
        self._release(self._n_bytes)
        return text

    def _release(self, n_bytes: int) -> None:
        n = sum(end <= n_bytes for end in self._ends)
        del self._ends[:n]
        self.n_released += n


def detokenize(tokenizer: Tokenizer, tokens: Iterable[int], special: bool) -> str:
    """The text of all of them. RequestError: the model's file has no tokenizer."""
    if not tokenizer.has_text:
        raise no_text()
    data = b"".join(tokenizer.token_bytes(token, special) for token in tokens)
    return (data.removeprefix(b" ") if tokenizer.add_space_prefix else data).decode(errors="replace")
