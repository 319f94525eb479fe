"""The text of one answer: tokens in, pieces that may be shown out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from luced.text.detokenizer import Detokenizer
from luced.text.fence import Fence
from luced.text.pieces import Pieces
from luced.text.stops import Stops


@dataclass(frozen=True)
class Piece:
    """Text to show, and the tokens that it came from."""

    text: str
    tokens: list[int]
    logprobs: list[dict[str, Any]]


class Choice:
    """`finish` is empty until the end is known, then stop or length. `tokens` are those that `text` came from."""

    def __init__(
        self,
        index: int,
        pieces: Pieces,
        begins: bool,
        stops: Sequence[str],
        stop_ids: frozenset[int],
        fence: Fence | None = None,
    ) -> None:
        self.index = index
        self.text = ""
        self.finish = ""
        self.tokens: list[int] = []
        self.logprobs: list[dict[str, Any]] = []
        self.n_generated = 0  # with those that ended it
        self._pieces = pieces
        self._detokenizer = Detokenizer(pieces, begins=begins)
        self._stops = Stops(stops, pieces.control_names if stops else frozenset())
        self._stop_ids = stop_ids
        self._fence = fence
        self._n_shown = 0  # tokens

    def add(self, tokens: Sequence[int], logprobs: Sequence[Any] | None) -> Piece | None:
        """New tokens. Once a stop string is complete `finish` is set, and what follows is dropped."""
        text = ""
        for i, token in enumerate(tokens):
            if self.finish:
                break
            self.n_generated += 1
            if token in self._stop_ids:  # it ends the answer and is no part of it
                break
            self.tokens.append(token)
            if logprobs is not None:
                self.logprobs.append(self._logprob(token, *logprobs[i]))
            text += self._push(self._detokenizer.push(token), self._pieces.control_name(token))
        return self._piece(text)

    def end(self, reason: str) -> Piece | None:
        """The engine has finished it: shows what was held back, unless a stop string ended the text."""
        if self.finish:
            return None
        text = self._push(self._detokenizer.flush())
        self.finish = self.finish or reason
        text += self._unfenced(self._stops.flush())
        return self._piece(text + (self._fence.flush() if self._fence else ""))

    def to_wire(self, with_logprobs: bool) -> dict[str, Any]:
        fields = {"index": self.index, "text": self.text, "finish": self.finish, "tokens": self.tokens}
        return fields | {"logprobs": self.logprobs} if with_logprobs else fields

    def _push(self, text: str, control: str = "") -> str:
        shown = self._stops.push(text, control)
        if self._stops.found is not None:
            self.finish = "stop"
            del self.tokens[self._stops.n_tokens :], self.logprobs[self._stops.n_tokens :]
        return self._unfenced(shown)

    def _unfenced(self, text: str) -> str:
        if self._fence is None:
            return text
        text = self._fence.push(text)
        if self._fence.is_closed:
            self.finish = "stop"
        return text

    def _piece(self, text: str) -> Piece | None:
        begin, end = self._n_shown, min(self._stops.n_tokens, len(self.tokens))
        if not self._pieces.has_text:
            end = len(self.tokens)
        elif not text:
            return None
        self.text += text
        self._n_shown = end
        return Piece(text, self.tokens[begin:end], self.logprobs[begin:end])

    def _logprob(self, token: int, logprob: float, top: Sequence[Sequence[Any]]) -> dict[str, Any]:
        return self._likelihood(token, logprob) | {"top": [self._likelihood(i, p) for i, p in top]}

    def _likelihood(self, token: int, logprob: float) -> dict[str, Any]:
        return {"id": token, "bytes": self._pieces.token_bytes(token), "logprob": logprob}
