"""Indices of rows in fixed device tables: row states, stop ids, penalty counts."""

from __future__ import annotations

import heapq


class Slots:
    """Indices 0..n-1; the least free one is taken first."""

    def __init__(self, n: int) -> None:
        self._free = list(range(n))

    @property
    def n_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return heapq.heappop(self._free)

    def give_back(self, slot: int) -> None:
        assert slot not in self._free, f"slot {slot} is free already"
        heapq.heappush(self._free, slot)
