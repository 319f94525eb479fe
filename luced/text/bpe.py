"""Byte-level BPE from a GGUF vocabulary, through the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from luced.errors import ModelError
from luced.text.families import family_of
from luced.text.vocabulary import Vocabulary, bad_key, scalar, strings

# Which texts never share a token: each expression cuts what the one before it has left whole; what does not match is
# a piece too. \s, \p{L} ... are Unicode's. By tokenizer.ggml.pre.
_CONTRACTIONS = r"'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = _CONTRACTIONS + (
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    "default": (
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    ),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "qwen35": (_QWEN35,),
    "laguna": (r"(?:\r?\n)+(?:(?!\r?\n)[\s\S])*", _QWEN2),  # each line with the newlines before it
    "joyai-llm": (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3),
    "deepseek-v3": (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3),
}
# Where a whole word that is a token is taken as it is, whatever the merges would make of it.
IGNORE_MERGES = frozenset({"llama-bpe"})
# Where prompts begin with BOS unless the file says otherwise.
ADD_BOS = frozenset({"llama-bpe"})
_DROPPED = "a byte that is no token"


class Bpe:
    """Texts to token ids by merges, over bytes that are written as printable characters."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._texts = vocabulary.texts
        pre = scalar(metadata, "tokenizer.ggml.pre", str, None)
        if pre is None and (family := family_of(scalar(metadata, "general.architecture", str, None), vocabulary)):
            pre = family.pre
        if pre not in PRE_TOKENIZERS:
            what = "names no tokenizer.ggml.pre" if pre is None else f"has the unknown tokenizer.ggml.pre {pre!r}"
            raise ModelError("unsupported_model", f"the model {what}", known=sorted(PRE_TOKENIZERS))
        ids = vocabulary.plain_ids()
        merges = read_merges(metadata, ids)
        # Bytes that are no token are dropped, but what is on both sides of them does not merge.
        ids[_DROPPED] = self._dropped = len(vocabulary)
        model = models.BPE(ids, merges, unk_token=_DROPPED, ignore_merges=pre in IGNORE_MERGES)
        self._library = tokenizers.Tokenizer(model)
        splits = [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated") for regex in PRE_TOKENIZERS[pre]]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._library.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return [i for i in ids if i != self._dropped] if self._dropped in ids else ids

    def piece(self, token: int) -> bytes:
        """The bytes of a normal token."""
        return b"".join(_BYTES.get(char) or char.encode() for char in self._texts[token])


def read_merges(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges whose tokens are all in `ids`, best first. ModelError."""
    merges: dict[tuple[str, str], None] = {}  # of equal ones the first counts
    for merge in strings(metadata, "tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if not right:
            raise bad_key("tokenizer.ggml.merges", f"has {merge[:40]!r}, which is not two tokens")
        if left in ids and right in ids and left + right in ids:
            merges[left, right] = None
    return list(merges)


def _byte_alphabet() -> dict[str, bytes]:
    """The character that stands for each byte: itself where it is printable in Latin-1, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(0x100 + i): bytes([byte]) for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()
