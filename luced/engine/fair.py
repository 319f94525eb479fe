"""Turns among the clients of one class: whoever has had the fewest rows is next; its own wait in line."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from luced.engine.sequence import Sequence

_rank = attrgetter("rank")


class Client:
    """n_rows it has had, counted from those that the least served one had when it came; and what it waits for."""

    __slots__ = ("n_live", "n_rows", "queue")

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.n_live = 0  # sequences that have not ended
        self.queue: list[Sequence] = []  # sequences that wait to start or for the rest of their known tokens, by rank

    @property
    def next(self) -> Sequence:
        """Whoever has begun goes on before another starts: its pages help nobody else."""
        return next((sequence for sequence in self.queue if sequence.slot >= 0), self.queue[0])


class Clients:
    """A client is known while it has sequences that have not ended."""

    def __init__(self) -> None:
        self._by_id: dict[int, Client] = {}

    def enter(self, sequence: Sequence) -> None:
        client = self._by_id.get(sequence.client)
        if client is None:
            least = min((other.n_rows for other in self._by_id.values()), default=0)
            client = self._by_id[sequence.client] = Client(least)
        client.n_live += 1

    def leave(self, sequence: Sequence) -> None:
        client = self._by_id[sequence.client]
        client.n_live -= 1
        if sequence.queued:
            self.unqueue(sequence)
        if not client.n_live:
            del self._by_id[sequence.client]

    def queue(self, sequence: Sequence) -> None:
        insort(self._by_id[sequence.client].queue, sequence, key=_rank)
        sequence.queued = True

    def unqueue(self, sequence: Sequence) -> None:
        self._by_id[sequence.client].queue.remove(sequence)
        sequence.queued = False

    def charge(self, sequence: Sequence, n_rows: int) -> None:
        self._by_id[sequence.client].n_rows += n_rows

    def waiting(self) -> list[Client]:
        """Clients whose queues are not empty."""
        return [client for client in self._by_id.values() if client.queue]

    def order(self) -> list[int]:
        """Requests that have not started, in the order in which their turns come: a client's turn comes when it has
        had the fewest rows, and those of its earlier requests are then counted."""
        turns = []
        for client in self._by_id.values():
            n_rows = client.n_rows
            for sequence in client.queue:
                if not sequence.request.has_started:
                    turns.append((n_rows, sequence.rank, sequence.request.id))
                n_rows += len(sequence.tokens) - sequence.n_done
        return [request_id for _, _, request_id in sorted(turns)]
