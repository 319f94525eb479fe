"""The text side of each model: what is known of its tokenizer, and what is asked of those who work with it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from luced.errors import RequestError
from luced.front.textpool import TextPool
from luced.gguf.catalogue import Entry
from luced.text.pieces import Pieces, pack, unpack
from luced.text.prompt import Prompt

if TYPE_CHECKING:
    from luced.front.session import Session

MAX_TEXTS = 8  # models of which it is kept


class Known(NamedTuple):
    """What the front knows of a tokenizer. has_fim: there are tokens for text with a hole."""

    pieces: Pieces
    bos_id: int | None
    eog_ids: frozenset[int]
    has_fim: bool


class Text:
    """Of one model, for one connection. `pieces` makes text of tokens here; all else may take long and is done in
    another process. RequestError: it took too long, or what each says."""

    def __init__(self, pool: TextPool, session: Session, entry: Entry, known: Known) -> None:
        self.pieces, self._bos_id, self.eog_ids, self.has_fim = known
        self._pool = pool
        self._session = session
        self._entry = entry

    async def chat(self, messages: list[dict[str, Any]], with_text: bool = False) -> Prompt:
        """RequestError: there are no messages, or the template does not accept them."""
        return _prompt(await self._do("chat", messages=messages, with_text=with_text))

    async def infill(self, prefix: str, suffix: str, extra: list[dict[str, str]], filename: str) -> Prompt:
        """With the model's own tokens where it has them, else through its template."""
        return _prompt(await self._do("infill", prefix=prefix, suffix=suffix, extra=extra, filename=filename))

    async def prompt(self, prompt: str | list[int]) -> Prompt:
        """A prompt as it is; text may name control tokens, and begins as the model wants prompts to begin.

        An empty prompt is the BOS token alone. RequestError: the model has none.
        """
        tokens = (await self.encode([prompt], special=True, bos=True))[0] if isinstance(prompt, str) else prompt
        if not tokens and self._bos_id is not None:
            tokens = [self._bos_id]
        if not tokens:
            raise RequestError("bad_parameter", "prompt is empty, and the model has no BOS token", parameter="prompt")
        return Prompt(prompt if isinstance(prompt, str) else "", tokens, [])

    async def encode(self, texts: list[str], special: bool, bos: bool) -> list[list[int]]:
        result = await self._do("encode", texts=texts, special=special, bos=bos)
        return [unpack(tokens).tolist() for tokens in result["tokens"]]

    async def decode(self, tokens: list[int], special: bool) -> str:
        """RequestError: there is no such token."""
        n_vocab = self.pieces.n_vocab
        if tokens and not 0 <= min(tokens) <= max(tokens) < n_vocab:
            wrong = next(token for token in tokens if not 0 <= token < n_vocab)
            raise RequestError("bad_parameter", f"tokens: the model has no token {wrong}", parameter="tokens")
        text: str = (await self._do("decode", tokens=pack(tokens), special=special))["text"]
        return text

    async def _do(self, job: str, **params: Any) -> dict[str, Any]:
        return await self._pool.do(self._session, self._entry, job, **params)


class Texts:
    """`pool.run` must be running."""

    def __init__(self) -> None:
        self.pool = TextPool()
        self._known: OrderedDict[Entry, Known] = OrderedDict()
        self._opening: defaultdict[Entry, trio.Lock] = defaultdict(trio.Lock)  # each is read once

    async def of(self, entry: Entry, session: Session) -> Text:
        """ModelError: the file is not in order, or its tokenizer is unknown to us."""
        async with self._opening[entry]:
            if entry not in self._known:
                found = await self.pool.do(session, entry, "open")
                pieces, ends = Pieces(**found["pieces"]), frozenset(found["eog_ids"])
                self._known[entry] = Known(pieces, found["bos_id"], ends, found["has_fim"])
                if len(self._known) > MAX_TEXTS:
                    self._known.popitem(last=False)
        self._known.move_to_end(entry)
        return Text(self.pool, session, entry, self._known[entry])


def _prompt(result: dict[str, Any]) -> Prompt:
    return Prompt(result["text"], unpack(result["tokens"]).tolist(), unpack(result["boundaries"]).tolist())
