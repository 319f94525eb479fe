"""Running a model without the daemon: logits of given tokens, and steps of one sequence."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from luced.device.choose import Chosen, choose
from luced.engine import loader
from luced.engine.plan import Chunk, Plan
from luced.engine.runner import Runner
from luced.engine.sequence import Request, Sequence, Table
from luced.errors import RequestError
from luced.link import Generate, Sampling


@contextmanager
def resident(
    path: Path,
    *,
    device: str = "cpu",
    isa: str = "auto",
    n_threads: int = 0,
    tell: Callable[[Chosen], None] | None = None,
    **options: Any,
) -> Iterator[Runner]:
    """A loaded model on a device of choose.py, of which `tell` hears; options are loader.Wants'."""
    chosen = choose(device, isa, n_threads)
    if tell is not None:
        tell(chosen)
    opened = chosen.device
    try:
        runner = drain(loader.load(path, opened, loader.Wants(**options)))
        try:
            yield runner
        finally:
            runner.close()
    finally:
        opened.close()


def logits(
    path: Path, tokens: list[int], *, kv_type: str = "f32", n_batch: int = 64, **device: Any
) -> npt.NDArray[np.float32]:
    """Logits [n_tokens, n_vocab] of every position; device: resident's. RequestError: no tokens, or one outside the
    vocabulary."""
    with resident(path, kv_type=kv_type, n_batch=n_batch, **device) as runner:
        _check_tokens(tokens, runner)
        s = sequence_of(runner, tokens)
        step = min(runner.n_batch, runner.n_seqs)
        starts = range(0, len(tokens), step)
        return np.concatenate([runner.forward_all(chunk_of(runner, s, i, min(step, len(tokens) - i))) for i in starts])


def prefill(runner: Runner, s: Sequence, begin: int, end: int) -> None:
    """Reads its tokens from begin to end; if those are the last, a token is drawn."""
    for i in range(begin, end, runner.n_batch):
        n_rows = min(runner.n_batch, end - i)
        runner.step(plan_of(chunk_of(runner, s, i, n_rows, n_out=int(i + n_rows == len(s.tokens)))))


def sequence_of(runner: Runner, tokens: list[int]) -> Sequence:
    if len(tokens) > runner.n_ctx:
        raise RequestError("context_too_long", f"{len(tokens)} tokens do not fit in a context of {runner.n_ctx}")
    greedy = Sampling(temperature=0.0)
    s = Request(Generate(0, "", tokens, greedy, [], runner.n_ctx), 0, 0.0).sequences[0]
    s.slot = 0
    return s


def chunk_of(
    runner: Runner, s: Sequence, position: int, n_rows: int, n_out: int = 0, parents: tuple[int, ...] = ()
) -> Chunk:
    """The next rows of the only sequence there is, or a draft tree: its pages are taken in order, a window's over and
    over."""
    end = position + n_rows
    n_pages = -(-end // runner.page_size)
    pages = range(n_pages)
    s.tables = [Table("i", [p % g.n_pages if p >= n_pages - g.n_pages else -1 for p in pages]) for g in runner.groups]
    groups = zip(runner.groups, s.tables, strict=True)
    slots = tuple(
        group.slots(table, position, end, runner.page_size) if group.ratio == 1 or not parents else []
        for group, table in groups
    )
    stores = ((n_rows - 1, 0),) if runner.n_states and not parents else ()
    source = 0 if position else -1
    return Chunk(s, s.tokens[position:end], position, slots, n_out, position == 0, source, stores, parents)


def plan_of(chunk: Chunk) -> Plan:
    return Plan((chunk,), tuple([] for _ in chunk.slots), len(chunk.tokens), chunk.n_out)


def _check_tokens(tokens: list[int], runner: Runner) -> None:
    bad = next((t for t in tokens if not 0 <= t < runner.n_vocab), None)
    if not tokens or bad is not None:
        what = f"token {bad} is outside the vocabulary of {runner.n_vocab}" if tokens else "there are no tokens"
        raise RequestError("bad_parameter", what)


def drain(loading: Generator[tuple[int, int], None, Runner]) -> Runner:
    while True:
        try:
            next(loading)
        except StopIteration as stop:
            runner: Runner = stop.value
            return runner
