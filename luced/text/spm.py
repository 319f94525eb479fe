"""SentencePiece's BPE from a GGUF vocabulary: scores, byte tokens, and U+2581 for the space."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from luced.text.vocabulary import SPACE, Vocabulary, bad_key, byte_ids

_MAX_CACHED_CHARS = 32


class Spm:
    """Texts to token ids: of all neighbours that make a token, those of the best score are merged first."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._texts, self._ids = vocabulary.texts, vocabulary.plain_ids()
        scores = metadata.get("tokenizer.ggml.scores")
        if not isinstance(scores, list) or len(scores) != len(vocabulary):
            raise bad_key("tokenizer.ggml.scores", f"must be {len(vocabulary)} scores, one for each token")
        if not all(map(math.isfinite, scores)):
            raise bad_key("tokenizer.ggml.scores", "has a score that is no number")
        self._scores = scores
        self._byte_ids = byte_ids(self._ids)
        # No merge crosses a place where no token has these two characters side by side: so a text may be cut before
        # each space, except after a character that some token has before a space.
        inner = {match[0] for match in re.findall(f"[^\0]{SPACE}", "\0".join(vocabulary.texts))} | {SPACE}
        self._cut = re.compile(f"(?<![{re.escape(''.join(sorted(inner)))}])(?={SPACE})")
        self._cached = lru_cache(1 << 16)(self._merge)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._cut.split(text.replace(" ", SPACE)):
            ids += self._cached(word) if len(word) <= _MAX_CACHED_CHARS else self._merge(word)
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes of a normal token."""
        return self._texts[token].replace(SPACE, " ").encode()

    def _merge(self, word: str) -> list[int]:
        """Symbols are spans of `word`, named by where they begin; a merge gives the right one's span to the left."""
        n = len(word)
        lengths, before, after = [1] * n, list(range(-1, n - 1)), list(range(1, n + 1))
        ids, scores = self._ids, self._scores
        # (-score, left, right, length of both): of equal scores the leftmost is first.
        heap = [(-scores[ids[pair]], i, i + 1, 2) for i in range(n - 1) if (pair := word[i : i + 2]) in ids]
        heapq.heapify(heap)
        while heap:
            _, left, right, length = heapq.heappop(heap)
            if not lengths[left] or not lengths[right] or lengths[left] + lengths[right] != length:
                continue  # one of them has been merged since
            lengths[left], lengths[right] = length, 0
            after[left] = beyond = after[right]
            if beyond < n:
                before[beyond] = left
                length = lengths[left] + lengths[beyond]
                if (token := ids.get(word[left : left + length])) is not None:
                    heapq.heappush(heap, (-scores[token], left, beyond, length))
            if (first := before[left]) >= 0:
                length = lengths[first] + lengths[left]
                if (token := ids.get(word[first : first + length])) is not None:
                    heapq.heappush(heap, (-scores[token], first, left, length))
        found: list[int] = []
        at = 0
        while at < n:
            symbol = word[at : at + lengths[at]]
            if (token := ids.get(symbol)) is not None:
                found.append(token)
            else:
                found += [self._byte_ids[byte] for byte in symbol.encode()]
            at = after[at]
        return found
