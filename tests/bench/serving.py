"""A whole server beside llama.cpp's, run by run on the same file: `python -m tests.bench.serving --help`.

Each run starts the server, waits until it answers, and lets n clients at once ask for 64 tokens after a prompt of about
70, streaming. luced is asked over its socket, llama-server over HTTP; both get as many slots as there are clients.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

import luce
from luce.errors import LuceError

N_TOKENS = 64
PROMPT = (
    "You are a careful assistant. Number {i} asks: a train leaves the station at nine in the morning and goes north at "
    "sixty miles an hour, another one leaves at ten and goes after it at eighty. When and where does the second train "
    "reach the first? Explain each step of the way."
)
PORT = 18765

Ask = Callable[[str], Iterator[object]]  # something for each token


@dataclass
class Run:
    """By the number of clients: `rates`, tokens a second of all together; `firsts_s`, mean time to the first token."""

    ready_s: float = 0.0
    loaded_s: float = 0.0
    resident_bytes: int = 0
    rates: dict[int, float] = field(default_factory=dict)
    firsts_s: dict[int, float] = field(default_factory=dict)


@contextmanager
def luced(model: Path, n_threads: int, run: Run) -> Iterator[tuple[Ask, int]]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(model, Path(folder) / "bench.gguf")
        socket = Path(folder) / "luced.sock"
        env = os.environ | {"LUCE_SOCKET": str(socket), "LUCE_MODEL_DIRS": folder}
        began = time.monotonic()
        args = [sys.executable, "-m", "luced", "serve", "--threads", str(n_threads)]
        daemon = subprocess.Popen(args, env=env, stderr=subprocess.DEVNULL)
        try:
            _until(lambda: luce.Client(str(socket)).close())
            run.ready_s = time.monotonic() - began
            began = time.monotonic()
            with luce.Client(str(socket)) as client:
                client.load("bench")
            run.loaded_s = time.monotonic() - began

            def ask(prompt: str) -> Iterator[object]:
                with luce.Client(str(socket)) as client:
                    stream = client.complete(prompt, model="bench", max_tokens=N_TOKENS, ignore_eos=True)
                    n_left = N_TOKENS
                    for event in stream.events():
                        if isinstance(event, luce.Text):
                            n_left -= len(event.tokens)
                            yield from event.tokens
                    yield from range(n_left)  # the last may have no text, which no event tells of

            yield ask, daemon.pid
        finally:
            daemon.terminate()
            daemon.wait()


@contextmanager
def llama_server(server: Path, model: Path, n_threads: int, n_slots: int, run: Run) -> Iterator[tuple[Ask, int]]:
    args = [str(server), "-m", str(model), "-t", str(n_threads), "-c", str(512 * n_slots), "-np", str(n_slots)]
    env = os.environ | {"LD_LIBRARY_PATH": str(server.parent)}
    began = time.monotonic()
    process = subprocess.Popen(
        [*args, "--port", str(PORT)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _until(_is_healthy)
        run.ready_s = run.loaded_s = time.monotonic() - began

        def ask(prompt: str) -> Iterator[object]:
            connection = http.client.HTTPConnection("127.0.0.1", PORT)
            body = {"prompt": prompt, "n_predict": N_TOKENS, "ignore_eos": True, "stream": True, "return_tokens": True}
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    yield from json.loads(line[6:]).get("tokens", [])

        yield ask, process.pid
    finally:
        process.terminate()
        process.wait()


def _is_healthy() -> None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    connection.request("GET", "/health")
    if connection.getresponse().status != 200:
        raise ConnectionError


def _until(attempt: Callable[[], None]) -> None:
    while True:
        try:
            return attempt()
        except (OSError, LuceError):
            time.sleep(0.005)


def measure(ask: Ask, pid: int, n_clients: list[int], run: Run) -> None:
    list(ask(PROMPT.format(i=0)))
    run.resident_bytes = _resident_bytes(pid)
    for n in n_clients:
        firsts: list[float] = []
        began = time.monotonic()
        threads = [threading.Thread(target=_one, args=(ask, f"{n}.{i}", firsts)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.rates[n] = n * N_TOKENS / (time.monotonic() - began)
        run.firsts_s[n] = statistics.mean(firsts)


def _one(ask: Ask, i: str, firsts: list[float]) -> None:
    began = time.monotonic()
    tokens = ask(PROMPT.format(i=i))
    next(tokens)
    firsts.append(time.monotonic() - began)
    n = 1 + sum(1 for _ in tokens)
    assert n == N_TOKENS, n


def _resident_bytes(pid: int) -> int:
    """Of a process and its children, shared pages once."""
    pids, total = [pid], 0
    for one in pids:
        for task in Path(f"/proc/{one}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
    return total


@click.command(help=__doc__)
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--peer", type=click.Path(exists=True, path_type=Path), required=True, help="llama.cpp's llama-server.")
@click.option("--threads", default=2, show_default=True)
@click.option("--clients", default="1,4,16", show_default=True)
@click.option("--pairs", default=3, show_default=True)
def main(model: Path, peer: Path, threads: int, clients: str, pairs: int) -> None:
    counts = list(map(int, clients.split(",")))
    found: dict[str, list[Run]] = {"luced": [], "llama-server": []}
    for i in range(pairs):
        for who in sorted(found, reverse=bool(i % 2)):
            run = Run()
            found[who].append(run)
            if who == "luced":
                with luced(model, threads, run) as (ask, pid):
                    measure(ask, pid, counts, run)
                continue
            for n in counts:  # a server of its own for each, with as many slots
                with llama_server(peer, model, threads, n, run) as (ask, pid):
                    one = Run()
                    measure(ask, pid, [n], one)
                run.rates |= one.rates
                run.firsts_s |= one.firsts_s
                run.resident_bytes = run.resident_bytes or one.resident_bytes
    rows: dict[str, Callable[[Run], float]] = {
        "ready, s": lambda run: run.ready_s,
        "loaded, s": lambda run: run.loaded_s,
        "resident, MiB": lambda run: run.resident_bytes / (1 << 20),
    }
    for n in counts:
        rows[f"{n} clients, tokens/s"] = lambda run, n=n: run.rates[n]  # type: ignore[misc]
        rows[f"{n} clients, first token, s"] = lambda run, n=n: run.firsts_s[n]  # type: ignore[misc]
    click.echo(f"{'':28} {'luced':>14} {'llama-server':>14}")
    for name, of in rows.items():
        a, b = (statistics.median(map(of, found[who])) for who in ("luced", "llama-server"))
        click.echo(f"{name:28} {a:14.2f} {b:14.2f}")


if __name__ == "__main__":
    main()
