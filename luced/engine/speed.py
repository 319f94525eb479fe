"""How fast a model reads and writes on a device, without a daemon."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from luced.device.copying import copy_rate
from luced.device.device import Device
from luced.device.energy import NoCounterError, counter
from luced.engine import loader
from luced.engine.floor import step_bytes
from luced.engine.offline import drain, prefill, sequence_of
from luced.engine.runner import Runner
from luced.engine.scheduler import Scheduler
from luced.engine.sequence import Sequence
from luced.engine.steps import Steps
from luced.errors import RequestError
from luced.link import Generate, Sampling

COUNTED_S = 1.0  # of work between two looks at the counter of energy, which is renewed ten times a second or more


class Work(NamedTuple):
    """pp: one sequence reads n tokens. tg: each of n_rows sequences writes n tokens, a row of each in a step. Both with
    `depth` tokens before."""

    kind: str
    n: int
    depth: int = 0
    n_rows: int = 1

    @property
    def name(self) -> str:
        rows = f" x{self.n_rows}" if self.n_rows > 1 else ""
        return f"{self.kind}{self.n}{rows}" + (f" @{self.depth}" if self.depth else "")


@dataclass(frozen=True)
class Measure:
    """tok_s: of all rows, the mean; floor_tok_s: of a step that only moves what it must, as fast as the device copies
    (of tg)."""

    test: str
    kind: str
    n_tokens: int
    depth: int
    n_rows: int
    n_threads: int
    n_runs: int
    tok_s: float
    stddev: float
    floor_tok_s: float | None
    j_per_token: float | None

    @property
    def share_of_floor(self) -> float | None:
        return self.tok_s / self.floor_tok_s if self.floor_tok_s else None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "share_of_floor": self.share_of_floor}


@dataclass(frozen=True)
class Conditions:
    """What the measures of a model have in common. no_energy: why no energy is measured; empty: it is."""

    copy_bytes_s: float
    weight_bytes: int
    load_s: float
    no_energy: str


def measure(path: Path, device: Device, works: list[Work], n_runs: int) -> Iterator[Conditions | Measure]:
    """The conditions, then one measure after another, of n_runs runs and one before that does not count.

    RequestError: a test does not fit the context, or its rows the memory or a step.
    """
    rate = copy_rate(device)
    joules, why = _counter(device)
    begin = time.perf_counter()
    runner = drain(loader.load(path, device))
    load_s = time.perf_counter() - begin
    try:
        for work in works:
            check_fits(work, runner.n_ctx)
        yield Conditions(rate, sum(t.n_bytes for t in runner.weights.file.tensors.values()), load_s, why)
        for work in works:
            yield _measure(runner, work, n_runs, rate, joules)
    finally:
        runner.close()


def _measure(runner: Runner, work: Work, n_runs: int, rate: float, joules: Callable[[], float] | None) -> Measure:
    run = _reader(runner, work) if work.kind == "pp" else _writer(runner, work)
    n_tokens = work.n * work.n_rows
    run()
    rates = [n_tokens / run() for _ in range(n_runs)]
    tok_s = statistics.mean(rates)
    floor = energy = None
    if work.kind == "tg":
        floor = work.n_rows * rate / step_bytes(runner, work.n_rows, work.depth + work.n // 2)
        energy = joules_per_run(run, n_tokens / tok_s, joules) / n_tokens if joules else None
    return Measure(
        test=work.name,
        kind=work.kind,
        n_tokens=work.n,
        depth=work.depth,
        n_rows=work.n_rows,
        n_threads=runner.device.n_threads,
        n_runs=n_runs,
        tok_s=tok_s,
        stddev=statistics.stdev(rates) if n_runs > 1 else 0.0,
        floor_tok_s=floor,
        j_per_token=energy,
    )


def joules_per_run(run: Callable[[], object], run_s: float, joules: Callable[[], float]) -> float:
    """By the difference of two lengths, one three times the other: what both begin and end with cancels out."""

    def spent(n: int) -> float:
        begin = joules()
        for _ in range(n):
            run()
        return joules() - begin

    n = math.ceil(COUNTED_S / run_s)
    return (spent(3 * n) - spent(n)) / (2 * n)


def _counter(device: Device) -> tuple[Callable[[], float] | None, str]:
    try:
        return counter(device), ""
    except NoCounterError as error:
        return None, str(error)


def _reader(runner: Runner, work: Work) -> Callable[[], float]:
    """Reads work.n tokens, after work.depth that it has read now; gives the seconds."""
    s = sequence_of(runner, _tokens(runner, work.depth + work.n))

    def read() -> float:
        begin_s = time.perf_counter()
        prefill(runner, s, work.depth, work.depth + work.n)
        return time.perf_counter() - begin_s

    prefill(runner, s, 0, work.depth)
    return read


def _writer(runner: Runner, work: Work) -> Callable[[], float]:
    """Each of work.n_rows sequences writes work.n tokens; gives the seconds in which all do. What comes before them is
    read first; the next run finds it in the prefix cache."""
    scheduler = Scheduler(runner)
    steps = Steps(runner, scheduler)
    ids = count()

    def step() -> None:
        if steps.next(time.monotonic) is None:
            raise _too_small(runner, work)

    def begin(row: int) -> Sequence:
        """One that has its first token, and waits."""
        prompt = _tokens(runner, max(1, work.depth), row)
        # Two more: it writes the first, and perhaps another, before all rows have begun.
        request = Generate(next(ids), "", prompt, Sampling(temperature=0.0), [], work.n + 2)
        scheduler.submit(request, time.monotonic())
        sequence = scheduler.requests[request.id].first
        while not sequence.n_generated:
            step()
        scheduler.pause(request.id, math.inf)
        while steps.is_under_way:
            step()
        return sequence

    def write() -> float:
        sequences = [begin(row) for row in range(work.n_rows)]
        n_left = sequences[0].n_left
        for sequence in sequences:
            scheduler.resume(sequence.request.id)
        n_steps, begin_s = 0, time.perf_counter()
        while scheduler.requests:
            step()
            n_steps += 1
        seconds = time.perf_counter() - begin_s
        if n_steps != n_left:  # some had to make room for others
            raise _too_small(runner, work)
        return seconds * work.n / n_steps

    return write


def _tokens(runner: Runner, n: int, row: int = 0) -> list[int]:
    return [(7 * i + 13 * row + 1) % runner.n_vocab for i in range(n)]


def check_fits(work: Work, n_ctx: int) -> None:
    """RequestError: a context of n_ctx tokens, or a step, is too small for it."""
    if work.depth + work.n >= n_ctx:
        what = f"{work.name}: {work.n} tokens after {work.depth} do not fit in a context of {n_ctx}"
        raise RequestError("context_too_long", what, "choose a smaller --depth, -p or -n")
    if work.n_rows > loader.N_SEQS:
        what = f"{work.name}: a step has at most {loader.N_SEQS} sequences, not {work.n_rows}"
        raise RequestError("bad_parameter", what, "choose a smaller --batch")


def _too_small(runner: Runner, work: Work) -> RequestError:
    pages = ", ".join(f"{g.n_pages} pages of {runner.page_size} tokens" for g in runner.groups)
    what = f"{work.name}: {work.n_rows} sequences do not fit side by side in a cache of {pages}"
    return RequestError("bad_parameter", what, "choose a smaller --depth, -n or --batch, or free memory")
