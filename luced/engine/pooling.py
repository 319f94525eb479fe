"""Embeddings: the hidden states of a prompt's rows made into one vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from luced.engine.plan import BROKEN, LENGTH, Chunk, Emitted


class Pooler:
    """Rows come in chunks of any size, and are added one by one in order: the vector does not depend on the chunks."""

    def __init__(self) -> None:
        self._sums: dict[int, npt.NDArray[np.float64]] = {}  # by slot, of those that are not complete

    def merge(
        self, chunks: tuple[Chunk, ...], emitted: Sequence[Emitted], hidden: npt.NDArray[np.float32]
    ) -> list[Emitted]:
        """What a step gave: `emitted` for the chunks that drew a token, and the vectors that are complete; hidden
        [n_batch, n_embd] is of its rows."""
        drawn = iter(emitted)
        results = []
        begin = 0
        for chunk in chunks:
            end = begin + len(chunk.tokens)
            if chunk.sequence.pooling:
                vector = self._pool(chunk, hidden[begin:end])
                if chunk.has_result:
                    finish = LENGTH if np.isfinite(vector).all() else BROKEN
                    results.append(Emitted(-1, finish, vector=vector.tolist()))
            elif chunk.n_out:
                results.append(next(drawn))
            begin = end
        return results

    def _pool(self, chunk: Chunk, rows: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        slot, pooling = chunk.sequence.slot, chunk.sequence.pooling
        if pooling == "last":
            last: npt.NDArray[np.float32] = rows[-1]
            return last
        if pooling == "cls":
            if chunk.position == 0:
                self._sums[slot] = rows[0].astype(np.float64)
            return self._sums[slot]
        if chunk.position == 0:
            self._sums[slot] = np.zeros(rows.shape[1])
        total = self._sums[slot]
        for row in rows:
            total += row
        mean: npt.NDArray[np.float64] = total / chunk.sequence.n_prompt
        return mean
