"""The vocabulary of a GGUF file: texts and kinds of tokens, and which of them begin and end a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from luced.errors import ModelError

T = TypeVar("T")

SPACE = "\u2581"  # how vocabularies of characters write the space
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Kind(IntEnum):
    """tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts of tokens that end an answer in some model, whatever its file says of them: ends of turns and texts, and what
# code models put between files. They are control tokens even where a converter forgot to say so.
END_TEXTS = (
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>", "<|return|>", "<|call|>",
    "<|flush|>", "<|calls|>", "<end_of_turn>", "<eos>", "<turn|>", "<|tool_response>", "</s>", "<EOT>", "_<EOT>",
    "[EOT]", "[EOS]", "[e~[", "<end_of_utterance>", "<｜end▁of▁sentence｜>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
)  # fmt: skip


class Vocabulary:
    """Token ids are indices of `texts` and `kinds`; `ids` maps a text to its id (the last one that has it)."""

    def __init__(
        self,
        texts: Sequence[str],
        kinds: Sequence[int],
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        unknown_id: int | None = None,
        more_end_ids: Sequence[int] = (),
    ) -> None:
        self.texts = texts
        self.kinds = bytearray(kinds)
        self.ids = dict(zip(texts, range(len(texts)), strict=True))
        self.bos_id, self.eos_id, self.unknown_id = bos_id, eos_id, unknown_id
        # Where a vocabulary has Gemma 4's end of a turn before a tool's answer, "</s>" is a tag of HTML in it.
        not_here = {"</s>"} if "<|tool_response>" in self.ids else set()
        ends = [self.ids[text] for text in END_TEXTS if text in self.ids and text not in not_here]
        for i in ends:
            self.kinds[i] = Kind.CONTROL
        self.eog_ids = frozenset([*ends, *more_end_ids] if eos_id is None else [*ends, *more_end_ids, eos_id])

    def plain_ids(self) -> dict[str, int]:
        """`ids` without those tokens that no plain text may become, control tokens and the unknown one."""
        return {text: i for text, i in self.ids.items() if self.kinds[i] not in (Kind.CONTROL, Kind.UNKNOWN)}

    def __len__(self) -> int:
        return len(self.texts)


def read_vocabulary(metadata: Mapping[str, Any], bos_id: int | None, eos_id: int | None) -> Vocabulary:
    """The vocabulary in the metadata, with the ids that its kind of tokenizer has where the file names none.
    ModelError: a key is missing or wrong."""
    texts = strings(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type") or [Kind.NORMAL] * len(texts)
    if len(kinds) != len(texts):
        raise bad_key("tokenizer.ggml.token_type", f"has {len(kinds)} entries for {len(texts)} tokens")
    if not set(kinds) <= set(Kind):
        raise bad_key("tokenizer.ggml.token_type", f"has the unknown type {max(set(kinds) - set(Kind))}")
    for text, kind in zip(texts, kinds, strict=True):
        if kind == Kind.BYTE and not _BYTE.fullmatch(text):
            raise bad_key("tokenizer.ggml.tokens", f"has the byte token {text[:20]!r}; it must be like <0x0A>")

    def token_id(name: str, default: int | None = None) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        value = scalar(metadata, key, int, default)
        if value is not None and not 0 <= value < len(texts):
            raise bad_key(key, f"is {value}, but there are {len(texts)} tokens")
        return value

    more = [i for name in ("eot", "eom") if (i := token_id(name)) is not None]
    return Vocabulary(
        texts,
        kinds,
        bos_id=token_id("bos", bos_id),
        eos_id=token_id("eos", eos_id),
        unknown_id=token_id("unknown"),
        more_end_ids=more,
    )


def byte_ids(ids: Mapping[str, int]) -> list[int]:
    """The tokens that stand for single bytes, <0x00> to <0xFF>. ModelError: one is missing."""
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in ids]
    if missing:
        raise bad_key("tokenizer.ggml.tokens", f"has no token for the byte 0x{missing[0]:02X}")
    return [ids[f"<0x{byte:02X}>"] for byte in range(256)]


def strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    """A list of strings that must be there."""
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise bad_key(key, "is not a list of strings" if key in metadata else "is missing")
    return value


def scalar(metadata: Mapping[str, Any], key: str, kind: type[T], default: T | None) -> T | None:
    value = metadata.get(key, default)
    if value is not None and type(value) is not kind:
        raise bad_key(key, f"must be {kind.__name__}, not {type(value).__name__}")
    return value


def bad_key(key: str, why: str) -> ModelError:
    return ModelError("bad_model_file", f"the metadata key {key!r} {why}", key=key)
