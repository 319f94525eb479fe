"""What belongs between two texts, asked for with the model's own tokens or, where it has none, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from luced.text.chat import Message
from luced.text.families import FIM_NAMES
from luced.text.prompt import Prompt
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
