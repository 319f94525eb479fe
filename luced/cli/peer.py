"""llama.cpp's llama-bench, run on the same file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from luced.errors import RequestError

if TYPE_CHECKING:
    from luced.device.device import Device
    from luced.engine.speed import Work

Rates = dict[tuple[str, int, int], float]  # by kind, tokens and depth: tokens per second


def run(peer: Path, model: Path, tests: Iterable[Work], device: Device, n_runs: int) -> Rates:
    """What it gives for these tests; it has none of several rows. RequestError: it fails."""
    kinds: dict[str, list[Work]] = {"pp": [], "tg": []}
    for test in tests:
        kinds[test.kind].append(test)
    rates: Rates = {}
    for depth in sorted({test.depth for some in kinds.values() for test in some}):
        lengths = {
            kind: sorted({test.n for test in some if (test.depth, test.n_rows) == (depth, 1)})
            for kind, some in kinds.items()
        }
        if any(lengths.values()):
            rates |= _run(peer, model, lengths, depth, device, n_runs)
    return rates


def command(
    peer: Path, model: Path, lengths: dict[str, list[int]], depth: int, device: Device, n_runs: int
) -> list[str]:
    """On the same device alone, with flash attention; on the CPU with as many threads."""
    kind, _, index = device.name.partition(":")
    on_gpu, on_cpu = ["-ngl", "99", "-sm", "none", "-mg", index], ["-ngl", "0", "-t", str(device.n_threads)]
    where = on_gpu if kind == "cuda" else on_cpu
    n = {kind: ",".join(map(str, some)) or "0" for kind, some in lengths.items()}
    what = ["-p", n["pp"], "-n", n["tg"], "-d", str(depth), "-r", str(n_runs)]
    return [str(peer.absolute()), "-m", str(model), *where, "-fa", "1", *what, "-o", "json"]


def _run(peer: Path, model: Path, lengths: dict[str, list[int]], depth: int, device: Device, n_runs: int) -> Rates:
    args = command(peer, model, lengths, depth, device, n_runs)
    try:
        done = subprocess.run(args, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except OSError as error:
        raise _failed(peer, f"cannot be run: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
        raise _failed(peer, f"ended with status {done.returncode}: {last}")
    try:
        rows = json.loads(done.stdout)
        return {_key(row): float(row["avg_ts"]) for row in rows}
    except (ValueError, TypeError, LookupError) as error:
        raise _failed(peer, f"printed what llama-bench does not: {done.stdout[:80]!r}") from error


def _key(row: dict[str, int]) -> tuple[str, int, int]:
    n_prompt, n_gen = int(row["n_prompt"]), int(row["n_gen"])
    return ("pp" if n_prompt else "tg"), n_prompt or n_gen, int(row["n_depth"])


def _failed(peer: Path, what: str) -> RequestError:
    return RequestError("bad_parameter", f"--peer {peer} {what}", "give llama.cpp's llama-bench; run it by hand first")
