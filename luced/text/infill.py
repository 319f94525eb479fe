"""What belongs between two texts, asked for with the model's own tokens or, where it has none, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from luced.text.chat import Message, Prompt
from luced.text.families import FIM_NAMES
from luced.text.tokenizer import Tokenizer
from luced.text.vocabulary import Vocabulary, bad_key, scalar

_TASK = """\
You complete code in an editor. The user gives the text after the cursor and the text before it, in this order. \
Answer with nothing but the text that belongs at the cursor: no explanation, and nothing of what is there already."""


class Context(NamedTuple):
    """Another file that the answer may depend on."""

    filename: str
    text: str


class Fim(NamedTuple):
    """Tokens that mark what is before the cursor, after it, and where the middle begins; and those before the name of
    a repository and of a file, where there are such."""

    prefix: int
    suffix: int
    middle: int
    repo: int | None
    file: int | None


def read_fim(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Fim | None:
    """The tokens that the file names, or else those with a known name. None: not all three are there. ModelError."""
    found: dict[str, int | None] = {}
    for part, names in FIM_NAMES.items():
        key = f"tokenizer.ggml.fim_{part}_token_id"
        token = scalar(
            metadata, key, int, next((vocabulary.ids[name] for name in names if name in vocabulary.ids), None)
        )
        if token is not None and not 0 <= token < len(vocabulary):
            raise bad_key(key, f"is {token}, but there are {len(vocabulary)} tokens")
        found[part] = token
    prefix, suffix, middle = found["pre"], found["suf"], found["mid"]
    if prefix is None or suffix is None or middle is None:
        return None
    return Fim(prefix, suffix, middle, found["rep"], found["sep"])


def fim_prompt(
    tokenizer: Tokenizer, fim: Fim, prefix: str, suffix: str, extra: Sequence[Context], filename: str
) -> Prompt:
    """Other files first, then prefix, suffix and middle: the order that such models are trained on."""

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, special=False, bos=False)

    tokens = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    if fim.file is None:
        prefix = "".join(f"{context.filename}\n{context.text}\n" for context in extra) + prefix
    elif extra or filename:
        if fim.repo is not None:
            tokens += [fim.repo, *plain("repository\n")]
        for context in extra:
            tokens += [fim.file, *plain(f"{context.filename}\n{context.text}\n")]
        tokens += [fim.file, *plain(f"{filename}\n")]
    tokens += [fim.prefix, *plain(prefix), fim.suffix, *plain(suffix), fim.middle]
    return Prompt("", tokens, [])


def chat_messages(prefix: str, suffix: str, extra: Sequence[Context], filename: str) -> list[Message]:
    """The same as a question. What changes least comes first and the text at the cursor last, so that the prefix cache
    serves while the user types."""
    files = "".join(f"File {context.filename}:\n{_fenced(context.text)}\n\n" for context in extra)
    name = f" of {filename}" if filename else ""
    asked = f"{files}After the cursor{name}:\n{_fenced(suffix)}\n\nBefore the cursor:\n```\n{prefix}"
    return [{"role": "system", "content": _TASK}, {"role": "user", "content": asked}]


def _fenced(text: str) -> str:
    return f"```\n{text}\n```"


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
