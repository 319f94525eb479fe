"""A tokenizer of any vocabulary: an error that names the key, or texts that come back from it, whole and in pieces."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from luced.gguf.header import KINDS
from luced.gguf.reader import open_gguf
from luced.text.bpe import PRE_TOKENIZERS
from luced.text.detokenizer import Detokenizer, detokenize
from luced.text.infill import read_fim
from luced.text.tokenizer import Tokenizer, load_tokenizer
from luced.text.vocabulary import Kind
from tests.fuzz.choices import Choices, typed
from tests.tinygguf import tiny_chat_model

PREFIX = "tokenizer.ggml."
SPM_WORDS = ("<unk>", "<s>", "</s>", "▁", "▁a", "a", "b", "ab", "▁ab", "é", "👍", "<x>", "<x><y>")
KEYS = (
    "model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "unknown_token_id",
    "eot_token_id", "add_bos_token", "add_eos_token", "add_space_prefix", "fim_pre_token_id", "fim_suf_token_id",
)  # fmt: skip


def fuzz_vocabulary(data: bytes) -> None:
    choices = Choices(data)
    values = dict(choices.pick((byte_bpe(), small_spm(), small_chars())))
    for _ in range(choices.below(6)):
        _change(values, choices)
    with typed("bad_model_file", "unsupported_model"):
        tokenizer = load_tokenizer(values)
        read_fim(values, tokenizer.vocabulary)
        with typed("not_supported", "bad_parameter"):
            check_texts(tokenizer, choices)


def check_texts(tokenizer: Tokenizer, choices: Choices) -> None:
    """Any text to ids that are there; any ids to text, the same whole and in pieces, which never end inside a code
    point."""
    for special in (False, True):
        ids = tokenizer.encode(choices.text(), special=special, bos=choices.flag())
        assert all(0 <= i < tokenizer.n_vocab for i in ids)
    tokens = [choices.below(tokenizer.n_vocab) for _ in range(choices.below(32))]
    for special in (False, True):
        data = b"".join(tokenizer.token_bytes(token, special) for token in tokens)
        if tokenizer.add_space_prefix:
            data = data.removeprefix(b" ")
        whole = data.decode(errors="replace")
        assert detokenize(tokenizer, tokens, special) == whole
        detokenizer, text = Detokenizer(tokenizer, special), ""
        for token in tokens:
            text += detokenizer.push(token)
            assert whole.startswith(text)
        assert text + detokenizer.flush() == whole


@cache
def byte_bpe() -> dict[str, Any]:
    """Every byte is a token, and so are a few words: a text comes back as it was."""
    with tempfile.TemporaryDirectory() as folder, open_gguf(tiny_chat_model(Path(folder, "m.gguf"))) as file:
        return {key: value for key, value in file.metadata.items() if key.startswith(PREFIX)}


@cache
def small_spm() -> dict[str, Any]:
    texts = [*SPM_WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.NORMAL] * (len(SPM_WORDS) - 5), *[Kind.USER_DEFINED] * 2]
    return {
        f"{PREFIX}model": "llama",
        f"{PREFIX}tokens": texts,
        f"{PREFIX}token_type": [*map(int, kinds), *[int(Kind.BYTE)] * 256],
        f"{PREFIX}scores": [-float(i) for i in range(len(texts))],
    }


def small_chars() -> dict[str, Any]:
    return small_spm() | {
        f"{PREFIX}model": "gemma4",
        f"{PREFIX}merges": ["a b", "▁ a", "▁ ab", "▁a b"],
        f"{PREFIX}bos_token_id": 1,
        f"{PREFIX}eos_token_id": 2,
    }


def _change(values: dict[str, Any], choices: Choices) -> None:
    """One key gone, of another kind, or with another item; as a file may have it after its header was checked."""
    key = PREFIX + choices.pick(KEYS)
    old = values.get(key)
    if choices.below(8) == 7:
        values.pop(key, None)
    elif isinstance(old, list):
        new = list(old)
        at = choices.below(len(new)) if new else 0
        new[at : at + choices.below(3)] = [_item(key, choices) for _ in range(choices.below(3))]
        values[key] = new
    elif key.endswith(("model", "pre")):
        values[key] = choices.pick((*PRE_TOKENIZERS, "gpt2", "llama", "gemma4", "none", "bert", ""))
    elif "_id" in key:
        values[key] = choices.number() if choices.flag() else choices.below(300)
    elif key not in KINDS:
        values[key] = choices.value(0)


def _item(key: str, choices: Choices) -> Any:
    if key.endswith("token_type"):
        return choices.below(8)
    if key.endswith("scores"):
        return choices.float()
    if key.endswith("merges") and choices.flag():
        return f"{choices.text()} {choices.text()}"
    return choices.pick((*SPM_WORDS, "<0xZZ>", "<0x>", "<0x0a>")) if choices.flag() else choices.text()
