"""The sequences that have a slot: who is best, and who must make room."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from operator import attrgetter

from luced.engine.sequence import Request, Sequence
from luced.engine.slots import Slots

_rank, _tenant, _client = attrgetter("rank"), attrgetter("tenant"), attrgetter("tenant", "client")


class Running:
    """`sequences`: the best rank first."""

    def __init__(self, n_slots: int) -> None:
        self.sequences: list[Sequence] = []
        self._slots = Slots(n_slots)

    @property
    def is_full(self) -> bool:
        return not self._slots.n_free

    @property
    def worst(self) -> Sequence:
        return self.sequences[-1]

    def add(self, sequence: Sequence) -> None:
        sequence.slot = self._slots.take()
        sequence.is_fresh = True
        insort(self.sequences, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)
        self._slots.give_back(sequence.slot)
        sequence.slot = -1

    def set_paused(self, request: Request, paused: bool) -> None:
        """Its sequences change their rank: those that are paused are the worst."""
        own = [sequence for sequence in request.sequences if sequence.slot >= 0]
        for sequence in own:
            self.sequences.remove(sequence)
        request.paused = paused
        for sequence in own:
            insort(self.sequences, sequence, key=_rank)

    def paused(self) -> list[Sequence]:
        if not self.sequences or not self.worst.request.paused:
            return []
        return [sequence for sequence in self.sequences if sequence.request.paused]

    def victim(self, sequence: Sequence) -> Sequence | None:
        """Who must make room for `sequence` to start: the worst, if paused or of a lower class; else, where its tenant
        has nothing running in its class, the worst of the tenant that has most; and so for its client."""
        if not self.sequences:
            return None
        if self.worst.request.paused or self.worst.priority > sequence.priority:
            return self.worst
        peers = [s for s in self.sequences if s.priority == sequence.priority]
        for owner in (_tenant, _client):
            n_running = Counter(owner(s) for s in peers)
            if peers and not n_running[owner(sequence)]:
                greediest, most = n_running.most_common(1)[0]
                if most > 1:
                    return next(s for s in reversed(peers) if owner(s) == greediest)
        return None
