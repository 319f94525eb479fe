"""Decode beside llama.cpp on one GPU: `python -m tests.gpu.bench MODEL ... --peer llama-bench`.

The floor of a step is the bytes that it must read (weights once, keys and values that its rows see) over the rate at
which the device copies memory, counted as read and written.
"""

from __future__ import annotations

import csv
import io
import os
import statistics
import subprocess
import time
from pathlib import Path

import click

from luced.device.cuda import Cuda
from luced.engine import loader
from luced.engine.offline import drain, generate, prefill
from luced.engine.plan import UNKNOWN
from luced.engine.runner import Runner
from tests.gpu.steps import decode_plan

COPY_BYTES = 4 << 30


def copy_rate(device: Cuda) -> float:
    """Bytes read and written per second by copies within the device."""
    a, b = device.reserve(COPY_BYTES), device.reserve(COPY_BYTES)
    rates = []
    for _ in range(5):
        device.runtime.synchronize()
        begin = time.perf_counter()
        for _ in range(4):
            device.runtime.copy(b.pointer, a.pointer, COPY_BYTES)
        device.runtime.synchronize()
        rates.append(8 * COPY_BYTES / (time.perf_counter() - begin))
    return statistics.median(rates)


def read_bytes(runner: Runner, n_rows: int, depth: int) -> int:
    """Bytes that a step of n_rows rows at `depth` must read."""
    s = runner.spec
    output = "output.weight" if "output.weight" in runner.weights.file.tensors else "token_embd.weight"
    matrices = (
        t.n_bytes for t in runner.weights.file.tensors.values() if len(t.dims) == 2 and t.name != "token_embd.weight"
    )
    weights = sum(matrices) + (runner.weights.file.tensors[output].n_bytes if output == "token_embd.weight" else 0)
    cells = [min(depth + 1, g.window or depth + 1) * len(g.layers) for g in s.groups]
    values = sum(n * g.n_head_kv * (g.head_dim + g.head_dim_v) for n, g in zip(cells, s.groups, strict=True))
    return int(weights + n_rows * values * 2)


def decode_rate(runner: Runner, n_rows: int, depth: int, n_steps: int = 64) -> float:
    """Steps per second of the same rows over and over, each step launched before the last one is read."""
    plan = decode_plan(runner, n_rows, depth)
    for _ in range(3):
        runner.step(plan)
    runner.launch(plan)
    ahead = plan._replace(chunks=tuple(c._replace(tokens=[UNKNOWN], fresh=False) for c in plan.chunks))
    begin = time.perf_counter()
    for _ in range(n_steps):
        runner.launch(ahead)
        runner.read()
    rate = n_steps / (time.perf_counter() - begin)
    runner.read()
    return rate


def rate_of(run: object, n: int, n_runs: int = 3) -> float:
    rates = []
    for i in range(n_runs + 1):
        begin = time.perf_counter()
        run()  # type: ignore[operator]
        if i:
            rates.append(n / (time.perf_counter() - begin))
    return statistics.mean(rates)


def peer_rates(peer: Path, model: Path, depth: int) -> dict[str, float]:
    """llama-bench's tokens per second by test: pp512, tg128, and tg32 at the depth."""
    rates = {}
    for args in (["-p", "512", "-n", "128"], ["-p", "0", "-n", "32", "-d", str(depth)]):
        if args[-1] == "0":
            continue
        command = [str(peer), "-m", str(model), "-ngl", "99", "-fa", "1", "-r", "3", "-o", "csv", *args]
        out = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
        for row in csv.DictReader(io.StringIO(out)):
            test = f"pp{row['n_prompt']}" if int(row["n_prompt"]) else f"tg{row['n_gen']}"
            rates[test + (f"@{depth}" if int(row["n_depth"]) else "")] = float(row["avg_ts"])
    return rates


@click.command(help=__doc__)
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--peer", type=click.Path(exists=True, path_type=Path), help="llama.cpp's llama-bench.")
@click.option("--depth", default=0, show_default=True, help="Of one more test of decode, tokens.")
@click.option("--batches", default="", help="Rows of steps of several sequences: 16,32")
@click.option("--generation", default=0, help="Use the kernels as an older chip would: 80.")
def main(models: tuple[Path, ...], peer: Path | None, depth: int, batches: str, generation: int) -> None:
    device = Cuda(generation=generation)
    floor_rate = copy_rate(device)
    click.echo(f"{device.device_name}, {device.isa}; a copy moves {floor_rate / 1e9:.0f} GB/s")
    click.echo(f"{'model':28} {'test':>12} {'ours':>9} {'theirs':>9} {'ratio':>6} {'of floor':>8}")
    for model in models:
        begin = time.perf_counter()
        runner = drain(loader.load(model, device))
        load_s = time.perf_counter() - begin
        n_weights = sum(t.n_bytes for t in runner.weights.file.tensors.values())
        ours: list[tuple[str, float, float]] = [("load GB/s", n_weights / load_s / 1e9, 0.0)]
        ours.append(("pp512", rate_of(lambda r=runner: prefill(r, 512), 512), 0.0))
        floor = floor_rate / read_bytes(runner, 1, 64)
        ours.append(("tg128", rate_of(lambda r=runner: generate(r, 128), 128), floor))
        for n in map(int, filter(None, batches.split(","))):
            ours.append((f"steps of {n}", decode_rate(runner, n, 64), floor_rate / read_bytes(runner, n, 64)))
        if depth and depth < runner.n_ctx:
            floor = floor_rate / read_bytes(runner, 1, depth)
            ours.append((f"tg32@{depth}", decode_rate(runner, 1, depth), floor))
        n_ctx = runner.n_ctx
        runner.close()
        del runner
        theirs = peer_rates(peer, model, depth if depth < n_ctx else 0) if peer else {}
        for test, rate, floor in ours:
            their = theirs.get(test)
            versus = f"{their:9.1f} {rate / their:6.2f}" if their else " " * 16
            share = f"{rate / floor:8.0%}" if floor else ""
            click.echo(f"{model.stem:28} {test:>12} {rate:9.1f} {versus} {share}".rstrip())


if __name__ == "__main__":
    main()
