"""Steps for measuring: rows at a depth, with whatever the cache holds."""

from __future__ import annotations

from luced.engine.offline import sequence_of
from luced.engine.plan import Chunk, Plan
from luced.engine.runner import Runner
from luced.engine.sequence import Sequence, Table


def decode_plan(runner: Runner, n_rows: int, depth: int) -> Plan:
    """One row of each of n_rows sequences, which have `depth` tokens before it; pages may be shared between them."""
    chunks = [_chunk(runner, slot, depth) for slot in range(n_rows)]
    return Plan(tuple(chunks), tuple([] for _ in runner.groups), n_rows, n_rows)


def fill_rows(runner: Runner, n_rows: int, depth: int) -> None:
    runner.arrays.fill(decode_plan(runner, n_rows, depth))


def _chunk(runner: Runner, slot: int, depth: int) -> Chunk:
    s: Sequence = sequence_of(runner, [(7 * i + slot) % runner.n_vocab for i in range(depth + 1)])
    s.slot = slot
    size = runner.page_size
    n_pages = depth // size + 1
    first = slot * n_pages
    s.tables = [Table("i", [(first + p) % g.n_pages for p in range(n_pages)]) for g in runner.groups]
    slots = tuple([table[depth // size] * size + depth % size] for table in s.tables)
    return Chunk(s, s.tokens[depth:], depth, slots, 1, True)
