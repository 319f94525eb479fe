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
from tests.daemon.served import Served
from tests.front.harness import Map, running
from tests.tinygguf import tiny_chat_model

N_TOKENS = 300  # enough for the engine to be killed in the middle
ENGINE = (sys.executable, str(Path(__file__).with_name("faulty_engine.py")))
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
    """One request with a connection of its own. `has_begun` is set when it hears of it."""

    def __init__(self, served: Served, ask: Ask) -> None:
        self.has_begun = threading.Event()
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
                    self.has_begun.set()
                else:
                    self.phases.append(event.phase)
            answer = stream.answer
            assert not said or [said[choice.index] for choice in answer.choices] == [c.text for c in answer.choices]
            return answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("resume")
    tiny_chat_model(folder / "tiny.gguf")
    tiny_chat_model(folder / "other.gguf", seed=1)
    with Served(folder / "run" / "l.sock", "--model-dir", folder, "--model", "tiny", "--threads", "2") as served:
        yield served


def kill(served: Served, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(served.engine_pid(), number)


@contextlib.contextmanager
def stopped(served: Served) -> Iterator[None]:
    """No machine is so fast that its engine ends anything meanwhile."""
    engine = served.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(engine, signal.SIGCONT)


def restarts(served: Served) -> int:
    with served.client() as client:
        return client.status().engine.restarts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ten_streams_go_on(served: Served, temperature: float, number: signal.Signals) -> None:
    before = restarts(served)
    askers = [Asker(served, ask) for ask in asks(temperature)]
    with ThreadPoolExecutor(10) as pool:
        unharmed = list(pool.map(lambda ask: Asker(served, ask).run(), asks(temperature)))
        assert len({answer.choices[0].tokens for answer in unharmed}) == 10
        engine = served.engine_pid()
        answers = [pool.submit(asker.run) for asker in askers]
        for asker in askers[:-1]:  # the last one does not stream
            assert asker.has_begun.wait(60)
        os.kill(engine, number)
        for asker, expected, answer in zip(askers, unharmed, answers, strict=True):
            assert answer.result().choices == expected.choices
            assert answer.result().seed == expected.seed
            assert answer.result().usage.generated == expected.usage.generated
            assert answer.result().degraded == expected.degraded
            if "restart" in asker.phases:
                assert 0 < answer.result().timings.restart_s < answer.result().timings.total_s
    assert sum("restart" in asker.phases for asker in askers) >= 8  # one or two may have had all their tokens
    assert restarts(served) == before + 1


def test_killed_while_it_reads_a_prompt(served: Served) -> None:
    prompt = [3 + i * i % 256 for i in range(1900)]
    is_to_be_killed = True

    def ask(client: luce.Client) -> luce.Answer:
        stream = client.complete(prompt, max_tokens=20, temperature=1, seed=3, ignore_eos=True)
        events = stream.events()
        for event in events:
            if isinstance(event, luce.Progress) and event.phase == "prefill" and is_to_be_killed:
                assert event.done < event.total
                kill(served)
                break
        for _ in events:
            pass
        return stream.answer

    with served.client() as client:
        killed = ask(client)
        is_to_be_killed = False
        assert ask(client).choices == killed.choices
        assert killed.usage.prompt == len(prompt)


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
    options = ("--model-dir", tmp_path, "--model", "tiny", "--batch", "2")
    with Served(tmp_path / "l.sock", *options) as served, served.client() as client:

        def ask(client: luce.Client) -> luce.Stream:
            return client.complete("the model", max_tokens=400, seed=1, ignore_eos=True)

        first, second = Asker(served, ask), Asker(served, ask)
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(asker.run) for asker in (first, second)]
            assert first.has_begun.wait(60) or second.has_begun.wait(60)
            gone = client.complete("the model", max_tokens=400, ignore_eos=True)
            kill(served)
            gone.close()
            one, two = (answer.result() for answer in answers)
            assert one.choices == two.choices
        with stopped(served), pytest.raises(LuceError) as late:
            client.complete("the", deadline_s=0.3, stream=False).read()
        assert late.value.name == "deadline"
        assert client.status().requests == ()


async def answers(folder: Path, how: str, step: int, token: int, *asked: Map) -> list[tuple[Map | None, Map | None]]:
    """(error, result) of each `complete`, all at once, from engines whose device fails so (luced.device.faulty)."""
    async with running(folder, (*ENGINE, how, str(step), str(token)), state_dir=folder) as house:
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
        ("abort", {"prompt": "so is this", "logit_bias": {str(POISON): 100.0}}),  # its own first token
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


@pytest.mark.parametrize("how", ["segv", "lost"])
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
            is_over = threading.Event()

            def keep_asking(number: int) -> int:
                n_asked = 0
                while not is_over.is_set():
                    kind = (number + n_asked) % len(kinds)
                    assert Asker(served, kinds[kind]).run().choices == alone[kind].choices, kind
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
                        print(f"\r{n + 1} kills", end="", flush=True)
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
                if b"\0engine\0" in Path(f"/proc/{line}/cmdline").read_bytes():
                    return int(line)
    return None


@pytest.mark.slow
def test_killed_at_random_moments() -> None:
    kill_at_random(10, seed=1)


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1 << 32)
    print(f"seed {seed}")
    kill_at_random(50, seed)
