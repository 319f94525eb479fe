"""Turns in one class: the tenant that has had the fewest rows is next, and of it the client; its own wait in line."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from luced.engine.sequence import Sequence

_rank = attrgetter("rank")


class Share:
    """n_rows that somebody has had, counted from those that the least served one had when it came."""

    __slots__ = ("n_live", "n_rows")

    def __init__(self, others: Iterable[Share]) -> None:
        self.n_rows: int = min((other.n_rows for other in others), default=0)
        self.n_live = 0  # sequences that have not ended


class Client(Share):
    """And what it waits for."""

    __slots__ = ("queue", "tenant")

    def __init__(self, tenant: Share, others: Iterable[Client]) -> None:
        self.tenant: Share = tenant
        super().__init__(other for other in others if other.tenant is tenant)
        self.queue: list[Sequence] = []  # sequences that wait to start or for the rest of their known tokens, by rank

    @property
    def served(self) -> tuple[int, int]:
        """Whose is the least is next."""
        return (self.tenant.n_rows, self.n_rows)

    @property
    def next(self) -> Sequence:
        """Whoever has begun goes on before another starts: its pages help nobody else."""
        return next((sequence for sequence in self.queue if sequence.slot >= 0), self.queue[0])


class Clients:
    """Tenants and clients are known while they have sequences that have not ended."""

    def __init__(self) -> None:
        self._tenants: dict[str, Share] = {}
        self._clients: dict[tuple[str, int], Client] = {}

    def enter(self, sequence: Sequence) -> None:
        name, key = sequence.tenant, (sequence.tenant, sequence.client)
        if name not in self._tenants:
            self._tenants[name] = Share(self._tenants.values())
        if key not in self._clients:
            self._clients[key] = Client(self._tenants[name], self._clients.values())
        sequence.share = client = self._clients[key]
        client.n_live += 1
        client.tenant.n_live += 1

    def leave(self, sequence: Sequence) -> None:
        if sequence.queued:
            self.unqueue(sequence)
        client = sequence.share
        client.n_live -= 1
        client.tenant.n_live -= 1
        if not client.n_live:
            del self._clients[sequence.tenant, sequence.client]
        if not client.tenant.n_live:
            del self._tenants[sequence.tenant]

    def queue(self, sequence: Sequence) -> None:
        insort(sequence.share.queue, sequence, key=_rank)
        sequence.queued = True

    def unqueue(self, sequence: Sequence) -> None:
        sequence.share.queue.remove(sequence)
        sequence.queued = False

    def charge(self, sequence: Sequence, n_rows: int) -> None:
        client = sequence.share
        client.n_rows += n_rows
        client.tenant.n_rows += n_rows

    def waiting(self) -> list[Client]:
        """Clients whose queues are not empty."""
        return [client for client in self._clients.values() if client.queue]

    def order(self) -> list[int]:
        """Requests that have not started, in the order in which their turns come, each of which is counted for the
        turns after it."""
        turns: dict[Share, list[tuple[int, tuple[bool, int, int, int], Sequence]]] = {}
        for client in self.waiting():
            turns.setdefault(client.tenant, []).extend(_in_turn(client.n_rows, client.queue))
        order: list[tuple[int, tuple[bool, int, int, int], Sequence]] = []
        for tenant, own in turns.items():
            order += _in_turn(tenant.n_rows, (sequence for _, _, sequence in sorted(own)))
        return [sequence.request.id for _, _, sequence in sorted(order) if not sequence.request.has_started]


def _in_turn(n_rows: int, queue: Iterable[Sequence]) -> Iterable[tuple[int, tuple[bool, int, int, int], Sequence]]:
    """Each with the rows that are had when its turn comes; its rank decides between equals, of which there are none."""
    for sequence in queue:
        yield n_rows, sequence.rank, sequence
        n_rows += len(sequence.tokens) - sequence.n_done
