"""What is not a kernel, measured with a model of no cost: `python -m tests.bench.overhead`.

Engine: the gap from one launch's end to the next one's begin, in an engine whose kernels return at once. Front: CPU
time of the daemon's process for each token, with an engine that says one token a request and step at a steady pace
(at a slow one a token costs more: the processor has gone idle before it), and clients in a third process that read
them.
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import trio
from numpy.typing import NDArray

from luced import link
from luced.config import Config
from luced.device.abi import FaultCode
from luced.device.cpu import Cpu
from luced.engine import loader
from luced.engine.plan import Model
from luced.engine.port import Port
from luced.engine.runner import Runner
from luced.engine.worker import Worker
from luced.front import listener
from luced.front.daemon import Daemon
from tests.front.harness import Client
from tests.tinygguf import tiny_chat_model

N_CTX = 8192
N_VOCAB = 300
WARM_STEPS = 100

# ---- the engine ----


@dataclass
class NoKernels:
    """A program that takes no time and changes nothing: every row goes on with token 0."""

    outputs: list[NDArray[Any]] = field(default_factory=list)
    launched_s: list[float] = field(default_factory=list)

    def start(self) -> None:
        self.launched_s.append(time.perf_counter())

    def read(self) -> list[NDArray[Any]]:
        return self.outputs

    def run(self) -> list[NDArray[Any]]:
        self.start()
        return self.read()

    def take_fault(self) -> FaultCode:
        return FaultCode.NONE


def engine_gaps(folder: Path, n_requests: int, n_steps: int) -> list[float]:
    """Seconds between two launches, while a process reads what the engine says."""
    ours, theirs = socket.socketpair()
    reader = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
    with ours, closing(Cpu(n_threads=1)) as device:
        program = NoKernels()

        def load(message: link.Load) -> Generator[tuple[int, int], None, Model]:
            model = yield from loader.load(Path(message.path), device, loader.Wants(n_ctx=N_CTX))
            assert isinstance(model, Runner)
            program.outputs = model.program.run()
            model.program = program
            return model

        messages: list[link.Message] = [link.Load("tiny", str(tiny_chat_model(folder / "tiny.gguf", n_ctx=N_CTX)))]
        messages += [_generate(i, n_steps) for i in range(n_requests)]
        Worker(_Script(ours, messages, program, n_steps), load).run()
    theirs.close()
    reader.terminate()
    reader.wait()
    at = program.launched_s[WARM_STEPS:]
    return [b - a for a, b in itertools.pairwise(at)]


class _Script(Port):
    """A port whose front says the first message, the others when it is done, and leaves after n_steps."""

    def __init__(self, end: socket.socket, messages: list[link.Message], program: NoKernels, n_steps: int) -> None:
        super().__init__(end)
        self._messages, self._program, self._n_steps = messages, program, n_steps

    def send(self, messages: list[link.Message]) -> None:
        super().send(messages)
        self._is_loaded = any(isinstance(message, link.Loaded) for message in messages)

    def receive(self, wait_s: float | None) -> list[link.Message] | None:
        assert super().receive(0) == []
        if len(self._program.launched_s) >= self._n_steps - 1:
            return None
        match self._messages:
            case [link.Load() as load, *rest]:
                self._messages = rest
                return [load]
            case [_, *_] if self._is_loaded:
                said, self._messages = self._messages, []
                return said
        return []


def _generate(i: int, n_tokens: int) -> link.Generate:
    return link.Generate(i, "tiny", [3 + i], link.Sampling(temperature=0), [], n_tokens, client=i)


# ---- the front ----


class SteadyEngine:
    """Says one token of each request `rate` times a second, until its max_tokens."""

    def __init__(self, fd: int, rate: float) -> None:
        self.port = Port(socket.socket(fileno=fd))
        self.step_s = 1 / rate
        self.left: dict[int, int] = {}

    def run(self) -> None:
        self.port.send([link.Ready(os.getpid(), "cpu", "of no cost", "baseline", 1)])
        next_s = time.monotonic()
        while (messages := self.port.receive(max(0.0, next_s - time.monotonic()) if self.left else None)) is not None:
            for message in messages:
                match message:
                    case link.Load():
                        self.port.send([link.Loaded(message.model, "llama", N_CTX, N_VOCAB, {}, 0.0)])
                    case link.Generate():
                        self.left[message.id] = message.max_tokens
                        self.port.send([link.Progress(message.id, len(message.prompt), len(message.prompt), 0)])
                    case link.Abandon():
                        self.left.pop(message.id, None)
                    case link.Stop():
                        return
            if self.left and time.monotonic() >= next_s:
                next_s = max(next_s + self.step_s, time.monotonic())
                self.port.send(self.step())

    def step(self) -> list[link.Message]:
        said: list[link.Message] = []
        for request, n_left in list(self.left.items()):
            said.append(link.Tokens(request, 0, [3 + ord("a") + n_left % 26]))
            self.left[request] = n_left - 1
            if n_left == 1:
                del self.left[request]
                usage = dict.fromkeys(("n_prompt", "n_cached", "n_generated", "n_drafted", "n_accepted"), 1)
                timings = dict.fromkeys(("queue_s", "prefill_s", "decode_s"), 0.0)
                said.append(link.Finished(request, 0, "length", usage, timings))
        return said


async def serve(folder: Path, rate: float) -> None:
    """The front of that engine, until it is terminated."""
    config = Config(folder / "luced.sock", (folder,), default_model="tiny")
    command = (sys.executable, "-m", "tests.bench.overhead", "--rate", str(rate), "--engine")
    await Daemon(config, listener.listen(config.socket), command).run()


async def front_cost(folder: Path, n_clients: int, rate: float, n_tokens: int) -> float:
    """CPU seconds of the front for each token."""
    tiny_chat_model(folder / "tiny.gguf", n_ctx=N_CTX)
    command = [sys.executable, "-m", "tests.bench.overhead", "--rate", str(rate), "--front", str(folder)]
    front = await trio.lowlevel.open_process(command, stderr=subprocess.DEVNULL)
    path = folder / "luced.sock"
    try:
        while not path.exists():
            await trio.sleep(0.05)
        clients = [Client(await trio.open_unix_socket(str(path))) for _ in range(n_clients)]
        for client in clients:
            await client.call("hello", client="bench 1.0")
        await clients[0].call("complete", prompt="a", max_tokens=4)
        requests = [await client.send("complete", prompt="a", max_tokens=n_tokens) for client in clients]
        for client, request in zip(clients, requests, strict=True):
            await client.note(request, "text")
        before = _cpu_s(front.pid)
        async with trio.open_nursery() as nursery:
            for client, request in zip(clients, requests, strict=True):
                nursery.start_soon(client.response, request)
        return (_cpu_s(front.pid) - before) / (n_clients * n_tokens)
    finally:
        front.terminate()
        await front.wait()


def _cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@click.command(help=__doc__)
@click.option("--requests", default="1,16", show_default=True, help="Requests, or clients, at once.")
@click.option("--rate", default=1000.0, show_default=True, help="Steps a second that the front is given.")
@click.option("--steps", default=1000, show_default=True, help="Steps that are measured.")
@click.option("--front", type=click.Path(path_type=Path), hidden=True)
@click.option("--engine", is_flag=True, hidden=True)
@click.option("--link-fd", type=int, hidden=True)
def main(requests: str, rate: float, steps: int, front: Path | None, engine: bool, link_fd: int) -> None:
    if engine:
        return SteadyEngine(link_fd, rate).run()
    if front:
        return trio.run(serve, front, rate)
    click.echo(f"{'at once':>8} {'gap between launches, us':>28} {'front, us of CPU a token':>28}")
    for n in map(int, requests.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            gaps = engine_gaps(Path(folder), n, steps)
            cost_s = trio.run(front_cost, Path(folder), n, rate, steps)
        middle, high = statistics.median(gaps), statistics.quantiles(gaps, n=20)[-1]
        click.echo(f"{n:8} {middle * 1e6:19.1f} (95 %: {high * 1e6:.0f}) {cost_s * 1e6:28.1f}")


if __name__ == "__main__":
    main()
