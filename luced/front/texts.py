"""The text side of each model: tokenizer and chat template, read once from its file. The work is done in threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import trio

from luce.errors import from_wire
from luced.errors import RequestError
from luced.gguf.catalogue import Entry
from luced.gguf.reader import open_gguf
from luced.text.chat import ChatTemplate, Prompt, load_template
from luced.text.detokenizer import detokenize
from luced.text.infill import Context, Fim, chat_messages, fim_prompt, read_fim
from luced.text.tokenizer import Tokenizer, load_tokenizer

MAX_TEXTS = 8  # models whose tokenizers are kept
N_THREADS = 2  # that tokenise at once: the cores are the engine's

T = TypeVar("T")


class Text:
    """Tokenizer and chat template of one model; instead of the template the reason why there is none. `fim`: its tokens
    for text with a hole, if it has such."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | RequestError,
        fim: Fim | None,
        threads: trio.CapacityLimiter,
    ) -> None:
        self.tokenizer = tokenizer
        self.fim = fim
        self._template = template
        self._threads = threads

    async def chat(self, messages: list[dict[str, Any]]) -> Prompt:
        """RequestError: there are no messages, or the template does not accept them."""
        return await self._in_thread(self._get_template().encode, self.tokenizer, messages)

    async def infill(self, prefix: str, suffix: str, extra: list[Context], filename: str) -> Prompt:
        """With the model's own tokens where it has them, else through its template, without thinking."""
        if self.fim is not None:
            return await self._in_thread(fim_prompt, self.tokenizer, self.fim, prefix, suffix, extra, filename)
        template, messages = self._get_template(), chat_messages(prefix, suffix, extra, filename)
        return await self._in_thread(lambda: template.encode(self.tokenizer, messages, enable_thinking=False))

    async def prompt(self, prompt: str | list[int]) -> Prompt:
        """A prompt as it is; text may name control tokens, and begins as the model wants prompts to begin.

        An empty prompt is the BOS token alone. RequestError: the model has none.
        """
        tokens = await self.encode(prompt, special=True, bos=True) if isinstance(prompt, str) else prompt
        if not tokens and self.tokenizer.bos_id is not None:
            tokens = [self.tokenizer.bos_id]
        if not tokens:
            raise RequestError("bad_parameter", "prompt is empty, and the model has no BOS token", parameter="prompt")
        return Prompt(prompt if isinstance(prompt, str) else "", tokens, [])

    async def encode(self, text: str, special: bool, bos: bool) -> list[int]:
        return await self._in_thread(self.tokenizer.encode, text, special, bos)

    async def decode(self, tokens: list[int], special: bool) -> str:
        """RequestError: there is no such token."""
        for token in tokens:
            if not 0 <= token < self.tokenizer.n_vocab:
                raise RequestError("bad_parameter", f"tokens: the model has no token {token}", parameter="tokens")
        return await self._in_thread(detokenize, self.tokenizer, tokens, special)

    def _get_template(self) -> ChatTemplate:
        if isinstance(self._template, RequestError):
            raise from_wire(self._template.to_wire())
        return self._template

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await trio.to_thread.run_sync(work, *args, abandon_on_cancel=True, limiter=self._threads)


class Texts:
    def __init__(self) -> None:
        self._texts: OrderedDict[Entry, Text] = OrderedDict()
        self._reading = trio.Lock()
        self._threads = trio.CapacityLimiter(N_THREADS)

    async def of(self, entry: Entry) -> Text:
        """ModelError: the file is not in order, or its tokenizer is unknown to us."""
        async with self._reading:  # one file at a time, and each once
            if entry not in self._texts:
                self._texts[entry] = await trio.to_thread.run_sync(self._read, entry)
                if len(self._texts) > MAX_TEXTS:
                    self._texts.popitem(last=False)
            self._texts.move_to_end(entry)
            return self._texts[entry]

    def _read(self, entry: Entry) -> Text:
        with open_gguf(entry.path) as file:
            tokenizer = load_tokenizer(file.metadata)
            template: ChatTemplate | RequestError
            try:
                template = load_template(file.metadata, tokenizer)
            except RequestError as error:
                template = error
            return Text(tokenizer, template, read_fim(file.metadata, tokenizer.vocabulary), self._threads)
