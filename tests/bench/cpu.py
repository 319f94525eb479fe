"""Speed on the CPU beside llama.cpp, run by run on the same file and threads: `python -m tests.bench.cpu --help`.

Runs alternate, so that what else the machine does hits both. A ratio is the geometric mean over the pairs, with the
lower end of its 95 % interval (Student's t of the logarithms). What limits a row is measured between the pairs: of
decode the rate at which as many threads read memory (a token reads each weight once; not said of weights that the last
cache holds), of prefill what a core multiplies and adds (peak.cpp): int8 for quantised weights, F32 for others.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from luced.gguf.reader import open_gguf
from luced.ops import FLOAT_TYPES

# Student's t, one side, 97.5 %, by degrees of freedom.
T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 14: 2.14, 19: 2.09}
L3_BYTES = int(Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().removesuffix("K\n")) << 10


class Reader:
    """Reads memory as fast as n threads can."""

    def __init__(self, n_threads: int, n_bytes: int = 1536 << 20) -> None:
        self._parts = np.array_split(np.ones(n_bytes // 8, np.int64), n_threads)
        self._pool = ThreadPoolExecutor(n_threads)

    def bytes_per_s(self) -> float:
        begin = time.perf_counter()
        list(self._pool.map(np.bitwise_or.reduce, self._parts))
        return sum(part.nbytes for part in self._parts) / (time.perf_counter() - begin)


class Peak:
    """Operations per second of one core, by kind of number."""

    def __init__(self, folder: str) -> None:
        self._program = Path(folder) / "peak"
        source = Path(__file__).with_name("peak.cpp")
        _run(
            [os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-march=native", "-o", str(self._program), str(source)]
        )

    def measure(self) -> dict[str, float]:
        return {name: float(rate) for name, rate in map(str.split, _run([str(self._program)]).splitlines())}


@dataclass(frozen=True)
class Work:
    """What a token costs: bytes of weights that decode reads, operations of prefill, and their kind."""

    n_bytes: int
    n_operations: int
    kind: str

    @classmethod
    def of(cls, model: Path) -> Work:
        with closing(open_gguf(model)) as file:
            tensors = file.tensors
            layers = [t for name, t in tensors.items() if len(t.dims) == 2 and name.startswith("blk.")]
            unread = {"token_embd.weight"} if "output.weight" in tensors else set()
            n_bytes = sum(t.n_bytes for name, t in tensors.items() if name not in unread)
            kind = "f32" if layers[0].type in FLOAT_TYPES else "int8"
            return cls(n_bytes, 2 * sum(math.prod(t.dims) for t in layers), kind)


def ours(model: Path, n_threads: int, n_prompt: str, n_write: int) -> dict[str, float]:
    args = [sys.executable, "-m", "luced", "bench", str(model), "-p", n_prompt, "-n", str(n_write), "-r", "1", "--json"]
    lines = _run([*args, "--threads", str(n_threads)]).splitlines()
    return {row["test"]: row["tok_s"] for row in map(json.loads, lines)}


def theirs(bench: Path, model: Path, n_threads: int, n_prompt: str, n_write: int) -> dict[str, float]:
    args = [str(bench), "-m", str(model), "-t", str(n_threads), "-p", n_prompt, "-n", str(n_write)]
    args += ["-r", "1", "-o", "json"]
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


def measure(model: Path, peer: Path, n_threads: int, pairs: int, n_prompt: str, n_write: int, peak: Peak) -> None:
    """Prints the rows of one model and number of threads."""
    work, reader = Work.of(model), Reader(n_threads)
    found: dict[str, list[tuple[float, float]]] = {}
    reads, peaks = [], []
    for i in range(pairs):
        results: dict[str, dict[str, float]] = {}
        for who in ("ours", "theirs") if i % 2 else ("theirs", "ours"):
            if who == "ours":
                results[who] = ours(model, n_threads, n_prompt, n_write)
            else:
                results[who] = theirs(peer, model, n_threads, n_prompt, n_write)
        for test, tok_s in results["ours"].items():
            found.setdefault(test, []).append((tok_s, results["theirs"][test]))
        reads.append(max(reader.bytes_per_s() for _ in range(3)))  # the first one after a pause is slower
        peaks.append(peak.measure()[work.kind])
    floor, most = statistics.median(reads), n_threads * statistics.median(peaks)
    for test, runs in found.items():
        mean, lower = ratio(runs)
        a, b = (statistics.median(run[i] for run in runs) for i in (0, 1))
        if test.startswith("pp"):
            limit = f"{a * work.n_operations / most:.0%} of {most / 1e9:.0f} G {work.kind} operations/s"
        elif work.n_bytes > L3_BYTES:
            limit = f"{a * work.n_bytes / floor:.0%} of {floor / 1e9:.1f} GB/s of memory"
        else:
            limit = f"the last cache, {a * work.n_bytes / 1e9:.1f} GB/s"
        click.echo(f"| {model.stem} | {n_threads} | {test} | {a:.4g} | {b:.4g} | {mean:.2f} | {lower:.2f} | {limit} |")


@click.command(help=__doc__)
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--peer", type=click.Path(exists=True, path_type=Path), required=True, help="llama.cpp's llama-bench.")
@click.option("--threads", default="1,2", show_default=True)
@click.option("--pairs", default=15, show_default=True)
@click.option("-p", "n_prompt", default="128,512", show_default=True, help="Lengths of prompts.")
@click.option("-n", "n_write", default=32, show_default=True, help="Tokens to write.")
def main(models: tuple[Path, ...], peer: Path, threads: str, pairs: int, n_prompt: str, n_write: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        peak = Peak(folder)
        rates = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in peak.measure().items())
        click.echo(f"One core: {rates} G operations/s; last cache {L3_BYTES >> 20} MiB; {pairs} pairs.\n")
        click.echo("| model | threads | test | ours, tokens/s | llama.cpp | ratio | lower | share of what limits it |")
        click.echo("|---|---|---|---|---|---|---|---|")
        for model in models:
            for n_threads in map(int, threads.split(",")):
                measure(model, peer, n_threads, pairs, n_prompt, n_write, peak)


if __name__ == "__main__":
    main()
