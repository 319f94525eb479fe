"""Where a step's time goes: `python -m tests.gpu.profile MODEL [--rows 1] [--depth 0]`.

The calls of a step that differ by their layer alone run one after the other, as a graph, so that each reads weights
that are in no cache. What is printed is the time of one, how often a step has it, and the bytes of weights per second.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from luced.device.cuda import Cuda
from luced.device.values import Call, Value
from luced.engine import loader
from luced.engine.offline import drain, sequence_of
from luced.engine.plan import Chunk, Plan
from luced.engine.runner import Runner
from luced.engine.sequence import Sequence, Table

REPEATS = 20


def label(call: Call) -> str:
    """The op and what it makes, without the layer's number."""
    out = next((call.args[name] for name in call.outs), None)
    name = re.sub(r"blk\.\d+\.", "", out.name) if isinstance(out, Value) else ""
    return f"{call.op} {name}"


def weight_bytes(call: Call) -> int:
    weight = call.args.get("weight")
    return weight.storage.n_bytes if call.op == "matmul" and isinstance(weight, Value) else 0


def seconds(runner: Runner, calls: list[Call]) -> float:
    """Of all of them, on a device that does nothing else."""
    device = runner.device
    assert isinstance(device, Cuda)
    program = device.compile(calls)
    for _ in range(3):
        program.run()
    begin = time.perf_counter()
    program.start()
    for _ in range(REPEATS - 1):
        program.start()
        program.read()
    program.read()
    return (time.perf_counter() - begin) / REPEATS


def fill_rows(runner: Runner, n_rows: int, depth: int) -> None:
    """One row of each of n_rows sequences, with `depth` tokens before it and whatever the cache holds; they may share
    pages."""
    chunks = tuple(_chunk(runner, slot, depth) for slot in range(n_rows))
    runner.arrays.fill(Plan(chunks, tuple([] for _ in runner.groups), n_rows, n_rows))


def _chunk(runner: Runner, slot: int, depth: int) -> Chunk:
    s: Sequence = sequence_of(runner, [(7 * i + slot) % runner.n_vocab for i in range(depth + 1)])
    s.slot = slot
    size = runner.page_size
    n_pages = depth // size + 1
    first = slot * n_pages
    s.tables = [Table("i", [(first + p) % g.n_pages for p in range(n_pages)]) for g in runner.groups]
    slots = tuple([table[depth // size] * size + depth % size] for table in s.tables)
    return Chunk(s, s.tokens[depth:], depth, slots, 1, True)


@click.command(help=__doc__)
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--rows", default=1, show_default=True)
@click.option("--depth", default=0, show_default=True, help="Tokens before the step's.")
def main(model: Path, rows: int, depth: int) -> None:
    device = Cuda()
    runner = drain(loader.load(model, device))
    fill_rows(runner, rows, depth)
    calls = runner.tape.calls[: runner.n_body] + runner.tape.calls[runner.n_hidden :]
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(label(call), []).append(call)
    total = 0.0
    click.echo(f"{model.stem}, {rows} rows at {depth}\n{'call':44} {'us':>8} {'times':>5} {'us in all':>9} {'GB/s':>6}")
    for name, group in groups.items():
        time_s = seconds(runner, group)
        total += time_s
        n_bytes = sum(map(weight_bytes, group))
        rate = f"{n_bytes / time_s / 1e9:6.0f}" if n_bytes else ""
        click.echo(f"{name:44} {time_s / len(group) * 1e6:8.2f} {len(group):5} {time_s * 1e6:9.1f} {rate}")
    whole = seconds(runner, calls)
    click.echo(f"{'sum':44} {'':8} {len(calls):5} {total * 1e6:9.1f}\n{'the step':44} {'':14} {whole * 1e6:9.1f}")


if __name__ == "__main__":
    main()
