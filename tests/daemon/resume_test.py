"""The engine dies in the middle of everything, and every request gets what it would have had: the whole daemon with
its real engine. `python -m tests.daemon.resume_test` kills it fifty times at random moments."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import luce
from luce.errors import LuceError
from tests.daemon.served import FAULTY_ENGINE, START_S, Served, wait_for_end
from tests.front.harness import Map, running
from tests.tinygguf import tiny_chat_model

N_TOKENS = 300
POISON = 3 + ord("~")  # the token of this byte
NEVER = 1 << 30  # a step
COMMON: Map = {"max_tokens": 40, "temperature": 1, "ignore_eos": True, "seed": 4, "logit_bias": {str(POISON): -100.0}}

Ask = Callable[[luce.Client], luce.Stream]


def asks(temperature: float) -> list[Ask]:
    """Ten requests, each of another kind."""
    common: Any = {"temperature": temperature, "max_tokens": N_TOKENS, "ignore_eos": True, "seed": 5}
    return [
        lambda client: client.complete("the model is one", **common),
        lambda client: client.complete("the model is one for you", **common, repetition_penalty=1.3),
        lambda client: client.complete("you", **common, frequency_penalty=0.4, presence_penalty=0.2),
        lambda client: client.complete("hello hello", **common, logprobs=3),
        lambda client: client.complete("world", **common, n=3),
        lambda client: client.complete("of the", **common, stop=["\xff", "no such text"], stop_ids=[299]),
        lambda client: client.complete("what", **common, logit_bias={7: 3.0, 9: -5.0}, top_k=5, min_p=0.0),
        lambda client: client.chat("what is one engine for? " * 40, **common),
        lambda client: client.infill("the ", " is", **common),
        lambda client: client.complete("to you", **common, stream=False, priority="batch"),
    ]


class Asker:
    """One request with a connection of its own."""

    def __init__(self, served: Served, ask: Ask) -> None:
        self.phases: list[str] = []
        self._served = served
        self._ask = ask

    def run(self) -> luce.Answer:
        with self._served.client() as client:
            stream = self._ask(client)
            said: dict[int, str] = {}
            for event in stream.events():
                if isinstance(event, luce.Text):
                    said[event.choice] = said.get(event.choice, "") + event.text
                else:
                    self.phases.append(event.phase)
            answer = stream.answer
            assert not said or [said[choice.index] for choice in answer.choices] == [c.text for c in answer.choices]
            return answer


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> tuple[str | Path, ...]:
    """Of a daemon that has two models."""
    folder = tmp_path_factory.mktemp("resume")
    tiny_chat_model(folder / "tiny.gguf")
    tiny_chat_model(folder / "other.gguf", seed=1)
    return "--model-dir", folder, "--model", "tiny", "--threads", "2"


@pytest.fixture(scope="module")
def served(options: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("run") / "l.sock", *options) as served:
        yield served


def kill(served: Served) -> None:
    os.kill(served.engine_pid(), signal.SIGKILL)


def restarts(served: Served) -> int:
    with served.client() as client:
        return client.status().engine.restarts


@pytest.mark.parametrize("how", ["kill", "segv", "segv-ahead"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ten_streams_go_on(
    served: Served, options: tuple[str | Path, ...], tmp_path: Path, temperature: float, how: str
) -> None:
    """Beside engines of which none lasts for half an answer."""
    with ThreadPoolExecutor(10) as pool:
        unharmed = list(pool.map(lambda ask: Asker(served, ask).run(), asks(temperature)))
        assert len({answer.choices[0].tokens for answer in unharmed}) == 10
        with Served(tmp_path / "l.sock", *options, fault=(how, N_TOKENS // 2, -1)) as mortal:
            askers = [Asker(mortal, ask) for ask in asks(temperature)]
            answers = list(pool.map(Asker.run, askers))
            assert restarts(mortal) >= 2
    for expected, answer in zip(unharmed, answers, strict=True):
        assert answer.choices == expected.choices
        assert answer.seed == expected.seed
        assert answer.usage.generated == expected.usage.generated
        assert answer.degraded == expected.degraded
    torn = [answer for answer in answers if answer.timings.restart_s > 0]
    assert len(torn) >= 9  # one finds a stop id early
    assert all(answer.timings.restart_s < answer.timings.total_s for answer in torn)
    assert sum("restart" in asker.phases for asker in askers) >= 8  # and one does not stream


def test_killed_while_it_reads_a_prompt(served: Served, options: tuple[str | Path, ...], tmp_path: Path) -> None:
    prompt = [3 + i * i % 256 for i in range(1900)]

    def ask(client: luce.Client) -> luce.Stream:
        return client.complete(prompt, max_tokens=20, temperature=1, seed=3, ignore_eos=True)

    with served.client() as client:
        expected = ask(client).read()
    with Served(tmp_path / "l.sock", *options, fault=("stop", 2, -1)) as halting, halting.client() as client:
        stream = ask(client)
        events = stream.events()
        assert any(isinstance(event, luce.Progress) and 0 < event.done < event.total for event in events)
        os.kill(halting.wait_for_stop(), signal.SIGKILL)
        os.kill(halting.wait_for_stop(), signal.SIGCONT)  # the next one
        for _ in events:
            pass
        assert stream.answer.choices == expected.choices
        assert stream.answer.usage == expected.usage
        assert restarts(halting) == 1


def test_killed_while_it_loads_and_while_it_is_idle(served: Served) -> None:
    before = restarts(served)
    with served.client() as client:
        killed: list[int] = []

        def once(progress: luce.Progress) -> None:
            if not killed:
                killed.append(progress.done)
                kill(served)

        loaded = client.load("other", on_progress=once)
        assert (loaded.name, len(killed)) == ("other", 1)
        assert client.complete("to", model="other", max_tokens=3, ignore_eos=True).read().usage.generated == 3
        kill(served)
        vectors = client.embed(["one", "engine"]).embeddings
        kill(served)
        assert client.embed(["one", "engine"]).embeddings == vectors
        while len((status := client.status()).models) < 2:  # all come back
            time.sleep(0.01)
        assert {model.name for model in status.models} == {"tiny", "other"}
        assert status.engine.restarts == before + 3
        assert "SIGKILL" in status.engine.last_failure


def test_what_has_not_begun_and_what_is_cancelled(tmp_path: Path) -> None:
    """With room for one sequence, so that the others are in the queue."""
    tiny_chat_model(tmp_path / "tiny.gguf")
    options = ("--model-dir", tmp_path, "--model", "tiny")
    with Served(tmp_path / "l.sock", *options, fault=("stop", 50, -1, 2)) as served, served.client() as client:

        def ask(client: luce.Client) -> luce.Stream:
            return client.complete("the model", max_tokens=400, seed=1, ignore_eos=True)

        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(Asker(served, ask).run) for _ in range(2)]
            engine = served.wait_for_stop()
            gone = client.complete("the model", max_tokens=400, ignore_eos=True)
            client.tokenize("the")  # it has come
            os.kill(engine, signal.SIGKILL)
            gone.close()
            os.kill(served.wait_for_stop(), signal.SIGCONT)
            one, two = (answer.result() for answer in answers)
            assert one.choices == two.choices
        with served.stopped_engine(), pytest.raises(LuceError) as late:
            client.complete("the", deadline_s=0.3, stream=False).read()
        assert late.value.name == "deadline"
        assert client.status().requests == ()


async def answers(folder: Path, how: str, step: int, token: int, *asked: Map) -> list[tuple[Map | None, Map | None]]:
    """(error, result) of each `complete`, all at once, from engines whose device fails so (luced.device.faulty)."""
    async with running(folder, (*FAULTY_ENGINE, how, str(step), str(token)), state_dir=folder) as house:
        client = await house.connect()
        await client.call("load")
        ids = [await client.send("complete", **{**COMMON, **params}) for params in asked]
        return [await client.response(i) for i in ids]


def choices(ends: list[tuple[Map | None, Map | None]]) -> list[Any]:
    for error, _ in ends:
        assert error is None, error
    return [result and result["choices"] for _, result in ends]


@pytest.mark.parametrize(
    ("how", "poison"),
    [
        ("segv", {"prompt": "this is ~ poison"}),
        ("segv-ahead", {"prompt": "this is ~ poison"}),
        ("abort", {"prompt": "so is this", "logit_bias": {str(POISON): 100.0}}),  # its own first token
        ("abort-ahead", {"prompt": "so is this", "logit_bias": {str(POISON): 100.0}}),
        ("bus", {"prompt": "this is ~ poison", "n": 2}),
        ("word", {"prompt": "poison: " * 100 + "~"}),
        ("lost", {"prompt": "~", "max_tokens": 0}),
    ],
)
async def test_a_request_that_crashes_the_engine_is_found_and_refused(tmp_path: Path, how: str, poison: Map) -> None:
    sound: list[Map] = [{"prompt": "the model"}, {"prompt": "one engine", "n": 2}, {"prompt": "for you"}]
    expected = choices(await answers(tmp_path, how, NEVER, -1, *sound))
    first, second, (error, _), third = await answers(tmp_path, how, 0, POISON, *sound[:2], poison, sound[2])
    assert error is not None
    assert error["name"] == "engine_crash"
    (report,) = (tmp_path / "reports").iterdir()
    assert report.name == error["data"]["report"]
    assert "poison" not in report.read_text()
    assert choices([first, second, third]) == expected


@pytest.mark.parametrize("how", ["segv", "lost", "lost-ahead", "word-ahead"])
async def test_whoever_gets_on_is_not_blamed(tmp_path: Path, how: str) -> None:
    """Each engine lasts fifteen steps."""
    sound: list[Map] = [{"prompt": "the model"}, {"prompt": "one engine", "n": 2}, {"prompt": "for you"}]
    expected = choices(await answers(tmp_path, how, NEVER, -1, *sound))
    assert choices(await answers(tmp_path, how, 15, -1, *sound)) == expected
    assert not (tmp_path / "reports").exists()


def kill_at_random(n_kills: int, seed: int) -> None:
    """Twelve clients ask without pause; each answer must be the one that the request gets alone."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        tiny_chat_model(Path(folder) / "tiny.gguf")
        with Served(Path(folder) / "l.sock", "--model-dir", folder, "--model", "tiny", "--threads", "2") as served:
            kinds = asks(0.0) + asks(1.0)
            alone = [Asker(served, ask).run() for ask in kinds]
            is_over, has_answered = threading.Event(), threading.Event()

            def keep_asking(number: int) -> int:
                n_asked = 0
                while not is_over.is_set():
                    kind = (number + n_asked) % len(kinds)
                    assert Asker(served, kinds[kind]).run().choices == alone[kind].choices, kind
                    has_answered.set()
                    n_asked += 1
                return n_asked

            with ThreadPoolExecutor(12) as pool:
                counts = [pool.submit(keep_asking, number) for number in range(12)]
                try:
                    for n in range(n_kills):
                        time.sleep(dice.uniform(0, 2))
                        while (pid := child(served.process.pid)) is None:  # none is there between two lives
                            time.sleep(0.001)
                        os.kill(pid, signal.SIGKILL)
                        assert wait_for_end(pid)
                        print(f"\r{n + 1} kills", end="", flush=True)
                        if n % 5 == 4:  # who is killed ten times in a row before it gets on is given up
                            has_answered.clear()
                            assert has_answered.wait(START_S)
                finally:
                    is_over.set()
                n_asked = sum(count.result() for count in counts)
            print(f"\r{n_kills} kills, {restarts(served)} restarts, {n_asked} answers as they should be")
            assert restarts(served) == n_kills


def child(pid: int) -> int | None:
    """The engine of the daemon with this pid, ready or not: a child of whichever thread has started it."""
    with contextlib.suppress(FileNotFoundError):  # a thread or a child that has just ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for line in (thread / "children").read_text().split():
                if b"\0luced.engine\0" in Path(f"/proc/{line}/cmdline").read_bytes():
                    return int(line)
    return None


@pytest.mark.slow
def test_killed_at_random_moments() -> None:
    kill_at_random(10, seed=1)


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1 << 32)
    print(f"seed {seed}")
    kill_at_random(50, seed)
