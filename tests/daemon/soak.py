"""Sixty-four clients at once, for a while: python -m tests.daemon.soak --minutes 10 [--kills 20] [--seed N]

They ask questions of all lengths, cancel some, leave in the middle of others, and read some slowly. Every answer that
was finished must be the one that the request gets alone, and in the end nothing may be left over.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import luce
from luce.errors import LuceError
from tests.daemon.served import Served
from tests.tinygguf import WORDS, tiny_chat_model

N_CLIENTS = 64
N_QUESTIONS = 48  # few enough that each can be asked alone
SETTLE_S = 150  # workers for texts that have nothing to do end within two minutes
LEAST = {"answers": 50, "cancels": 5, "leaves": 5}  # of each, however slow the machine
SLACK_BYTES = 24 << 20  # by which memory may grow after the warm-up


@dataclass(frozen=True)
class Question:
    method: str
    params: dict[str, Any]

    def ask(self, client: luce.Client) -> luce.Stream:
        ask: Callable[..., luce.Stream] = getattr(client, self.method)
        return ask(**self.params)


def questions(dice: random.Random) -> list[Question]:
    made = []
    for i in range(N_QUESTIONS):
        text = " ".join(dice.choices(WORDS, k=int(2 ** dice.uniform(0, 7))))
        params: dict[str, Any] = {
            "max_tokens": int(2 ** dice.uniform(0, 8)),
            "temperature": dice.choice((0.0, 1.0)),
            "seed": i,
            "ignore_eos": True,
            "n": dice.choice((1, 1, 1, 2)),
            "priority": dice.choice(("interactive", "interactive", "agent", "batch")),
            "repetition_penalty": dice.choice((1.0, 1.2)),
            "stop": dice.choice(([], ["the"], ["zz", "e"])),
        }
        if dice.random() < 0.5:
            made.append(Question("chat", {"messages": f"{i}: {text}", **params}))
        else:
            made.append(Question("complete", {"prompt": f"{i} {text}", **params}))
    return made


class Soak:
    def __init__(self, served: Served, seed: int) -> None:
        self.served = served
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._counting = threading.Lock()
        self._questions = questions(random.Random(seed))
        with ThreadPoolExecutor(4) as pool:
            self._alone = list(pool.map(self._read, self._questions))

    def run(self, seconds: float) -> None:
        """All clients, for so long; longer if that is too short for the LEAST."""
        self._until = time.monotonic() + seconds
        with ThreadPoolExecutor(N_CLIENTS) as pool:
            list(pool.map(self._client, range(N_CLIENTS)))

    @property
    def _is_over(self) -> bool:
        is_enough = all(self.counts[how] >= n for how, n in LEAST.items())
        return bool(self.problems) or (is_enough and time.monotonic() >= self._until)

    def _read(self, question: Question) -> luce.Answer:
        with self.served.client() as client:
            return question.ask(client).read()

    def _client(self, number: int) -> None:
        dice = random.Random(f"{self.seed} {number}")
        while not self._is_over:
            try:
                with self.served.client() as client:
                    for _ in range(dice.randrange(1, 8)):
                        if not self._is_over and not self._ask(client, dice):
                            break
            except LuceError as error:
                self._note(f"client {number}: {error.name}: {error}")

    def _ask(self, client: luce.Client, dice: random.Random) -> bool:
        """One question. False: the client leaves in the middle of the answer."""
        i = dice.randrange(N_QUESTIONS)
        how = dice.choices(("reads", "reads slowly", "cancels", "leaves"), (6, 1, 2, 1))[0]
        n_events = dice.randrange(40)
        text: dict[int, str] = {}
        stream = self._questions[i].ask(client)
        events = stream.events()
        for n, event in enumerate(events):
            if isinstance(event, luce.Text):
                text[event.choice] = text.get(event.choice, "") + event.text
            if how == "reads slowly":
                time.sleep(dice.uniform(0, 0.02))
            elif n == n_events and how in ("cancels", "leaves"):
                break
        else:
            self._check(i, stream.answer, text)
            self._count("answers")
            return True
        self._count(how)
        if how == "cancels":
            events.close()
        return how == "cancels"

    def _check(self, i: int, answer: luce.Answer, text: dict[int, str]) -> None:
        if answer.choices != self._alone[i].choices:
            self._note(f"question {i} has another answer than alone")
        if any(text.get(choice.index, "") != choice.text for choice in answer.choices):
            self._note(f"question {i}: what was streamed is not what was answered")

    def _count(self, how: str) -> None:
        with self._counting:
            self.counts[how] += 1

    def _note(self, problem: str) -> None:
        with self._counting:
            self.problems.append(problem)


class Usage(NamedTuple):
    """What the daemon, its engine and its other processes have of the machine."""

    processes: int
    threads: int
    descriptors: int
    memory_bytes: int  # that is no file's

    @classmethod
    def of(cls, pid: int) -> Usage:
        family = [pid]
        for parent in family:
            for task in Path(f"/proc/{parent}/task").iterdir():
                family += map(int, (task / "children").read_text().split())
        status = "".join(Path(f"/proc/{one}/status").read_text() for one in family)
        return cls(
            len(family),
            sum(map(int, re.findall(r"Threads:\s+(\d+)", status))),
            sum(len(list(Path(f"/proc/{one}/fd").iterdir())) for one in family),
            sum(int(kilobytes) << 10 for kilobytes in re.findall(r"RssAnon:\s+(\d+)", status)),
        )


def settled(served: Served, most: Usage | None = None) -> Usage:
    """What it has once nobody asks anything any more; no more than `most`, which it may take a while to fall to: trio
    ends threads that have nothing to do after 10 s."""
    end = time.monotonic() + SETTLE_S
    before = usage = None
    with served.client() as client:
        while time.monotonic() < end:
            status = client.status()
            with suppress(FileNotFoundError, ProcessLookupError):  # a process or a thread that has just ended
                before, usage = usage, Usage.of(served.process.pid)
            if (
                usage is not None
                and usage == before
                and not status.requests
                and status.engine.state == "ready"
                and status.models
            ):
                caches = [model.cache for model in status.models]
                is_free = all(cache is not None and cache.used == 0 for cache in caches)
                if is_free and (most is None or all(have <= may for have, may in zip(usage, most, strict=True))):
                    return usage
            time.sleep(0.1)
    raise AssertionError(f"something is left over: {status}, {usage}")


def kill_now_and_then(served: Served, kills: int, seconds: float, dice: random.Random) -> None:
    killed = None
    with served.client() as client:
        for _ in range(kills):
            time.sleep(dice.uniform(0.2, 1.8) * seconds / kills)
            while (pid := client.status().engine.pid) in (None, killed):  # none is there between two lives
                time.sleep(0.01)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed = pid


def soak(seconds: float, seed: int, kills: int = 0) -> dict[str, Any]:
    """What was done and what is left. AssertionError: something is not as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_chat_model(Path(folder) / "tiny.gguf")
        with Served(Path(folder) / "l.sock", "--model-dir", folder, "--model", "tiny", "--threads", "2") as served:
            run = Soak(served, seed)
            run.run(seconds / 4)
            before = settled(served)
            with ThreadPoolExecutor(1) as killer:
                killing = killer.submit(kill_now_and_then, served, kills, seconds * 0.7, random.Random(seed))
                run.run(seconds * 3 / 4)
                killing.result()
            assert not run.problems, run.problems
            after = settled(served, before._replace(memory_bytes=before.memory_bytes + SLACK_BYTES))
            with served.client() as client:
                restarts = client.status().engine.restarts
            assert restarts == kills
            return {**run.counts, "restarts": restarts, "before": before, "after": after}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    for name, value in soak(given.minutes * 60, given.seed, given.kills).items():
        print(f"{name}: {value}")
