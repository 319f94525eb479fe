"""BPE over characters from a GGUF vocabulary, as Gemma 4 has it: merges, byte tokens, and U+2581 for the space."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import models

from luced.text.bpe import read_merges
from luced.text.vocabulary import SPACE, Vocabulary, byte_ids

_PARTS = re.compile(r"\n+|[^\n]+")


class CharBpe:
    """Texts to token ids by merges, over characters; one that is no token becomes its bytes. Newlines never merge with
    what is beside them, and as many as are a token become that token, whatever the merges would make of them."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._texts = vocabulary.texts
        ids = vocabulary.plain_ids()
        byte_ids(ids)  # that all are there
        self._newlines = {text: token for text, token in ids.items() if text.strip("\n") == ""}
        self._library = tokenizers.Tokenizer(models.BPE(ids, read_merges(metadata, ids), byte_fallback=True))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in _PARTS.findall(text.replace(" ", SPACE)):
            if (token := self._newlines.get(part)) is not None:
                ids.append(token)
            else:
                ids += self._library.encode(part, add_special_tokens=False).ids
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes of a normal token."""
        return self._texts[token].replace(SPACE, " ").encode()
