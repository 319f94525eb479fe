"""The step after one that is under way: what can be said of it before that one is committed."""

from __future__ import annotations

from luced.engine.cache import Cache
from luced.engine.fair import Clients
from luced.engine.plan import UNKNOWN, Chunk, Plan, begin


def step_after(plan: Plan, cache: Cache, classes: tuple[Clients, ...]) -> Plan | None:
    """The same rows, each one further: the device knows their tokens.

    None: somebody waits and may have rows too, a row is known to be its sequence's last or needs the host in between,
    or there is no page for one without taking another's.
    """
    if any(clients.waiting() for clients in classes) or not all(map(_goes_on, plan.chunks)):
        return None
    chunks = []
    for chunk in plan.chunks:
        sequence, n = chunk.sequence, len(chunk.tokens)
        if cache.n_rows(sequence, n + 1) <= n:
            return None  # what others have got by now they need a step later
        slots = cache.extend(sequence, 1, n)
        chunks.append(Chunk(sequence, [UNKNOWN], chunk.position + n, slots, 1, False))
    for chunk in chunks:
        classes[chunk.sequence.priority].charge(chunk.sequence, 1)
    return begin(tuple(chunks), tuple([] for _ in cache.groups))


def _goes_on(chunk: Chunk) -> bool:
    """Whether its sequence has another row after this one, as far as is known, and the host nothing to do before."""
    s = chunk.sequence
    return chunk.n_out > 0 and s.n_left > 1 and not (s.ended or s.request.paused or s.is_penalised)
