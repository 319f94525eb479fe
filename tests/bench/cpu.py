"""Speed on the CPU beside llama.cpp, run by run on the same file and threads: `python -m tests.bench.cpu --help`.

Runs alternate, so that what else the machine does hits both. A ratio is the geometric mean over the pairs, with the
lower end of its 95 % interval (Student's t of the logarithms). The floor of decode is the bytes of the weights over the
rate at which the same number of threads reads memory, measured between the pairs.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np

# Student's t, one side, 97.5 %, by degrees of freedom.
T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 14: 2.14, 19: 2.09}


class Reader:
    """Reads memory as fast as n threads can."""

    def __init__(self, n_threads: int, n_bytes: int = 256 << 20) -> None:
        self._parts = np.array_split(np.ones(n_bytes // 8, np.int64), n_threads)
        self._pool = ThreadPoolExecutor(n_threads)

    def bytes_per_s(self) -> float:
        begin = time.perf_counter()
        list(self._pool.map(np.bitwise_or.reduce, self._parts))
        return sum(part.nbytes for part in self._parts) / (time.perf_counter() - begin)


def ours(model: Path, n_threads: int, n_prompt: str, n_write: int) -> dict[str, float]:
    args = [sys.executable, "-m", "luced", "bench", str(model), "-p", n_prompt, "-n", str(n_write), "-r", "1", "--json"]
    lines = _run([*args, "--threads", str(n_threads)]).splitlines()
    return {row["test"]: row["tok_s"] for row in map(json.loads, lines)}


def theirs(bench: Path, model: Path, n_threads: int, n_prompt: str, n_write: int) -> dict[str, float]:
    args = [
        str(bench),
        "-m",
        str(model),
        "-t",
        str(n_threads),
        "-p",
        n_prompt,
        "-n",
        str(n_write),
        "-r",
        "1",
        "-o",
        "json",
    ]
    rows = json.loads(_run(args, LD_LIBRARY_PATH=str(bench.parent)))
    return {f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}": r["avg_ts"] for r in rows}


def _run(args: list[str], **env: str) -> str:
    return subprocess.run(args, env=os.environ | env, check=True, capture_output=True, text=True).stdout


def ratio(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Geometric mean of ours over theirs, and the lower end of its interval."""
    logs = [math.log(a / b) for a, b in pairs]
    mean = statistics.mean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0
    t = next(value for n, value in sorted(T.items(), reverse=True) if n <= len(logs) - 1)
    return math.exp(mean), math.exp(mean - t * statistics.stdev(logs) / math.sqrt(len(logs)))


@click.command(help=__doc__)
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--peer", type=click.Path(exists=True, path_type=Path), required=True, help="llama.cpp's llama-bench.")
@click.option("--threads", default="1,2", show_default=True)
@click.option("--pairs", default=15, show_default=True)
@click.option("-p", "n_prompt", default="128,512", show_default=True, help="Lengths of prompts.")
@click.option("-n", "n_write", default=64, show_default=True, help="Tokens to write.")
def main(models: tuple[Path, ...], peer: Path, threads: str, pairs: int, n_prompt: str, n_write: int) -> None:
    click.echo(
        f"{'model':28} {'threads':>7} {'test':>6} {'ours':>8} {'theirs':>8} {'ratio':>6} {'lower':>6} {'of floor':>8}"
    )
    for model in models:
        for n_threads in map(int, threads.split(",")):
            reader, rates = Reader(n_threads), []
            found: dict[str, list[tuple[float, float]]] = {}
            for i in range(pairs):
                results: dict[str, dict[str, float]] = {}
                for who in ("ours", "theirs") if i % 2 else ("theirs", "ours"):
                    if who == "ours":
                        results[who] = ours(model, n_threads, n_prompt, n_write)
                    else:
                        results[who] = theirs(peer, model, n_threads, n_prompt, n_write)
                for test, tok_s in results["ours"].items():
                    found.setdefault(test, []).append((tok_s, results["theirs"][test]))
                rates.append(reader.bytes_per_s())
            floor = statistics.median(rates) / model.stat().st_size
            for test, runs in found.items():
                mean, lower = ratio(runs)
                a, b = (statistics.median(run[i] for run in runs) for i in (0, 1))
                share = f"{a / floor:8.0%}" if test.startswith("tg") else ""
                row = f"{model.stem[:24]:24} {n_threads:7} {test:>6} {a:8.1f} {b:8.1f} {mean:6.2f} {lower:6.2f}"
                click.echo(f"{row} {share}".rstrip())


if __name__ == "__main__":
    main()
