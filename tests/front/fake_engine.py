"""An engine of no cost, for tests of the front: it speaks luced.link, and does what the prompt tells it to.

The prompt (the last message of a chat, or all of a prompt) is words with `;` between them:
    say:TEXT    says the bytes of TEXT (_ is a space, \\x.. a byte), one token each; say:TEXT*N: N times
    wait        says nothing more until another request says `go`
    hold        as the first word: waits like that before it has begun
    go          lets all go on that wait
    queue       tells the others that wait that they are a queue
    die         kills the engine, but only once: then the file DIED is there
    die!        kills the engine
    fault       the engine dies of SIGSEGV, but only once: then the file FAULTED is there
    fault!      the engine dies of SIGSEGV
    fail        ends the request with the error no_memory
    echo        says the Generate as JSON
    log         says what the engine was told, as JSON
    stop        says the first stop id and finishes
After its words it says the alphabet until max_tokens. `slow` is loaded when somebody opens the FIFO `go`, `bad` is
refused, `deadly` kills the engine.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from luce import wire
from luce.errors import LuceError
from luced import link

FIRST_BYTE = 3  # the token of byte 0 in tests/tinygguf.py
N_VOCAB = 300
N_CTX = 2048
TOTAL_BYTES = 1000
STATE = {
    "n_steps": 9, "n_rows": 80, "n_cached": 7, "n_preempted": 1, "n_evicted": 2,
    "pages": {"full": {"total": 10, "free": 3, "cached": 5}, "swa": {"total": 4, "free": 4, "cached": 0}},
}  # fmt: skip


class FakeEngine:
    def __init__(self, fd: int) -> None:
        self.link = socket.socket(fileno=fd)
        self.folder = Path()
        self.log: list[str] = []
        self.loaded: list[str] = []
        self.waiting: dict[int, Iterator[None]] = {}
        self.said: dict[int, list[int]] = {}  # tokens of each choice that were said to another engine

    def main(self) -> None:
        self.send(link.Ready(os.getpid(), "cpu", "fake", "baseline", 1))
        connection = wire.TrustedConnection()
        while data := self.link.recv(1 << 16):
            connection.feed(data)
            for event in connection:
                assert isinstance(event, wire.Notification)
                self.receive(link.from_wire(event.method, event.params))

    def send(self, message: link.Message) -> None:
        self.link.sendall(wire.notification(*link.to_wire(message)))

    def receive(self, message: link.Message) -> None:
        facts = [v for v in vars(message).values() if isinstance(v, (int, str))]
        self.log.append(" ".join(map(str, [type(message).__name__, *facts[:3]])))
        match message:
            case link.Load():
                self.load(message)
            case link.Unload():
                for request in self.waiting:
                    error = LuceError("cancelled", f"{message.model} was unloaded")
                    self.send(link.Failed(request, error.to_wire()))
                self.waiting.clear()
                self.send(link.Unloaded(message.model))
            case link.Generate() if message.pooling:
                self.embed(message)
            case link.Generate():
                self.waiting[message.id] = self.run(message)
                self.advance(message.id)
            case link.Abandon():
                self.waiting.pop(message.id, None)
            case link.Truncate():
                if message.id in self.waiting:
                    del self.waiting[message.id]
                    self.finish(message.id, message.choice, "truncated", message.n_tokens)
            case link.AskState():
                self.send(link.State(message.id, {"models": [{"model": name, **STATE} for name in self.loaded]}))
            case link.Stop():
                sys.exit(0)

    def load(self, load: link.Load) -> None:
        self.folder = Path(load.path).parent
        self.send(link.Loading(load.model, 0, TOTAL_BYTES))
        if load.model == "bad":
            self.send(link.Refused(load.model, LuceError("bad_model_file", "bad.gguf is bad").to_wire()))
            return
        if load.model == "deadly":
            die(signal.SIGSEGV)
        if load.model == "slow":
            (self.folder / "go").open().close()
        self.loaded.append(load.model)
        can = [] if load.model == "slow" else ["embed"]
        self.send(link.Loaded(load.model, "llama", N_CTX, N_VOCAB, {"weights": TOTAL_BYTES}, 0.0, can, "cls"))

    def embed(self, generate: link.Generate) -> None:
        """A vector of [n tokens, 1, 2]."""
        if script(generate.prompt) == ["die"] and not (self.folder / "DIED").exists():
            (self.folder / "DIED").touch()
            die()
        self.send(link.Embedded(generate.id, [float(len(generate.prompt)), 1.0, 2.0]))
        self.finish(generate.id, 0, "length", 0)

    def advance(self, request: int) -> None:
        if next(self.waiting[request], "over") == "over":
            self.waiting.pop(request, None)

    def run(self, generate: link.Generate) -> Iterator[None]:
        """Yields where it waits. What it has said before is not said again."""
        self.said[generate.id] = [len(said or ()) for said in generate.said or [[]] * generate.n]
        if script(generate.prompt)[0] == "hold":
            yield
        self.send(link.Progress(generate.id, len(generate.prompt), len(generate.prompt), 1))
        for choice in range(generate.n):
            if generate.said and generate.said[choice] is None:
                continue
            n_left = generate.max_tokens
            for word in script(generate.prompt):
                name, _, text = word.partition(":")
                reason, said = "", b""
                match name:
                    case "say":
                        text, _, n_times = text.partition("*")
                        said = text.replace("_", " ").encode().decode("unicode_escape").encode("latin-1")
                        said *= int(n_times or 1)
                    case "echo":
                        said = json.dumps(asdict(generate)).encode()
                    case "log":
                        said = json.dumps(self.log).encode()
                    case "wait":
                        yield
                    case "go":
                        for other in [i for i in self.waiting if i != generate.id]:
                            self.advance(other)
                    case "queue":
                        self.send(link.Queued(generate.model, [i for i in self.waiting if i != generate.id]))
                    case "die" if not (self.folder / "DIED").exists():
                        (self.folder / "DIED").touch()
                        die()
                    case "die!":
                        die()
                    case "fault" if not (self.folder / "FAULTED").exists():
                        (self.folder / "FAULTED").touch()
                        die(signal.SIGSEGV)
                    case "fault!":
                        die(signal.SIGSEGV)
                    case "fail":
                        error = LuceError("no_memory", "there is no memory")
                        self.send(link.Failed(generate.id, error.to_wire()))
                        return
                    case "stop":
                        self.say(generate, choice, generate.stop_ids[0])
                        reason = "stop"
                for byte in said[:n_left]:
                    self.say(generate, choice, FIRST_BYTE + byte)
                n_left -= min(n_left, len(said))
                if reason:
                    break
            else:
                reason = "length"
                for byte in itertools.islice(itertools.cycle(b"abcdefghijklmnopqrstuvwxyz"), n_left):
                    self.say(generate, choice, FIRST_BYTE + byte)
                n_left = 0
            self.finish(generate.id, choice, reason, generate.max_tokens - n_left)

    def say(self, generate: link.Generate, choice: int, token: int) -> None:
        if self.said[generate.id][choice]:
            self.said[generate.id][choice] -= 1
            return
        n = generate.sampling.n_logprobs
        logprobs = [[-0.5, [[token, -0.5]] * n]] if n >= 0 else None
        self.send(link.Tokens(generate.id, choice, [token], logprobs))

    def finish(self, request: int, choice: int, reason: str, n_generated: int) -> None:
        usage = {"n_prompt": 1, "n_cached": 1, "n_generated": n_generated, "n_drafted": 0, "n_accepted": 0}
        self.send(link.Finished(request, choice, reason, usage, {"queue_s": 0.0, "prefill_s": 0.0, "decode_s": 0.0}))


def script(prompt: list[int]) -> list[str]:
    text = bytes(token - FIRST_BYTE if FIRST_BYTE <= token < FIRST_BYTE + 256 else 0 for token in prompt).decode()
    in_chat = re.findall(r"\0user\n(.*?)\0", text, re.DOTALL)
    return (in_chat[-1] if in_chat else text).split(";")


def die(of: signal.Signals = signal.SIGKILL) -> None:
    os.kill(os.getpid(), of)
    signal.pause()


if __name__ == "__main__":
    FakeEngine(int(sys.argv[-1])).main()
