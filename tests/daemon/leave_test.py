"""Clients that cancel or vanish at every moment of a request: reports of slots that stay taken, of prompts that are
read to their end for nobody, and of one client's leaving that ends another's answer."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest

import luce
from tests.daemon.served import START_S, Served
from tests.tinygguf import tiny_chat_model

LONG = 60_000
PROMPT = [3 + i * i % 256 for i in range(LONG - 2000)]


class Raw:
    """A connection that can be left at any byte."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(START_S)
        self._socket.connect(str(path))
        self._unpacker = msgpack.Unpacker()
        self.send(1, "hello", {})
        self.until(lambda message: message[:2] == [1, 1])

    def send(self, request: int, method: str, params: dict[str, Any]) -> None:
        self.send_bytes(frame(request, method, params))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def until(self, is_it: Callable[[list[Any]], bool]) -> list[Any]:
        """The first message that is it."""
        while True:
            for message in self._unpacker:
                if is_it(message):
                    return list(message)
            data = self._socket.recv(1 << 16)
            assert data, "the daemon closed the connection"
            self._unpacker.feed(data)

    def response(self, request: int) -> tuple[Any, Any]:
        """(error, result)."""
        _, _, error, result = self.until(lambda message: message[:2] == [1, request])
        return error, result

    def wait_for(self, phase: str) -> None:
        """Until a request is that far."""
        if phase == "text":
            self.until(lambda message: message[1] == "text")
        else:
            self.until(lambda message: message[1] == "progress" and message[2][0]["phase"] == phase)

    def close(self) -> None:
        self._socket.close()


def frame(request: int, method: str, params: dict[str, Any]) -> bytes:
    data: bytes = msgpack.packb([0, request, method, [params]])
    return data


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("leave") / "tiny.gguf", n_ctx=LONG).parent


@pytest.fixture(scope="module")
def served(models: Path) -> Iterator[Served]:
    options = ("--model-dir", models, "--model", "tiny", "--threads", "1")
    with Served(models / "run" / "l.sock", *options) as served, served.client() as client:
        client.load()
        yield served


@pytest.fixture
def raw(served: Served) -> Iterator[Raw]:
    with closing(Raw(served.path)) as raw:
        yield raw


def cache_of(client: luce.Client) -> Any:
    (model,) = client.status().models
    return model.cache


def served_rows(client: luce.Client) -> int:
    return int(cache_of(client).rows)


def leave(served: Served, raw: Raw, how: str) -> None:
    """The request 2 of this connection, until the daemon knows it."""
    if how == "cancel":
        raw.send(3, "cancel", {"id": 2})
        assert raw.response(2)[0]["name"] == "cancelled"
    else:
        raw.close()
    with served.client() as client:
        until(lambda: not client.status().requests)


def check_free(served: Served) -> int:
    """Rows that the engine has served; nobody is left in it."""
    with served.client() as client:
        until(lambda: cache_of(client).used == 0)
        rows = served_rows(client)
        assert served_rows(client) == rows
        assert client.complete("hello", max_tokens=2, ignore_eos=True).read().usage.generated == 2
        return rows


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("params", [{"max_tokens": 1}, {"max_tokens": 0}, {"max_tokens": 9, "stream": False}])
def test_nobody_reads_the_prompt_of_who_left(models: Path, tmp_path: Path, params: dict[str, Any], how: str) -> None:
    with (
        Served(tmp_path / "l.sock", "--model-dir", models, "--model", "tiny", fault=("stop", 3, -1)) as served,
        closing(Raw(served.path)) as raw,
    ):
        raw.send(2, "complete", {"prompt": PROMPT, **params})
        raw.wait_for("prefill")
        engine = served.wait_for_stop()
        leave(served, raw, how)
        os.kill(engine, signal.SIGCONT)
        assert check_free(served) < len(PROMPT) // 20


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("n", [1, 7])
def test_who_leaves_in_the_middle_of_an_answer_frees_all(served: Served, raw: Raw, n: int, how: str) -> None:
    raw.send(2, "complete", {"prompt": "the", "temperature": 1, "ignore_eos": True, "n": n})
    raw.wait_for("text")
    leave(served, raw, how)
    check_free(served)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + START_S
    while not is_so():
        assert time.monotonic() < end


def test_those_who_leave_end_nobody_elses_answer(served: Served, raw: Raw) -> None:
    common: Any = {"temperature": 1, "seed": 1, "max_tokens": 150, "ignore_eos": True, "n": 60}  # of 64 places
    with served.client() as client:
        expected = client.complete("the model", **common).read().choices
        stream = client.complete("the model", **common)
        events = stream.events()
        while not isinstance(next(events), luce.Text):
            pass
        for i in range(2, 12):
            raw.send(i, "complete", {"prompt": "you", "max_tokens": 500, "ignore_eos": True})
        raw.wait_for("text")
        raw.close()
        for _ in events:
            pass
        assert stream.answer.choices == expected


def test_what_cancel_answers(served: Served, raw: Raw) -> None:
    """Cancelled before it began, twice, after its end; itself; what never was."""
    raw.send(2, "complete", {"prompt": "the", "ignore_eos": True})
    for i in (3, 4):
        raw.send(i, "cancel", {"id": 2})
    raw.send(5, "cancel", {"id": 5})
    raw.send(6, "cancel", {"id": 1 << 40})
    answers: dict[int, Any] = {}
    while len(answers) < 5:
        _, request, error, result = raw.until(lambda message: message[0] == 1)
        answers[request] = error["name"] if error else result["cancelled"]
    assert answers.pop(4) in (True, False)  # the end of the request may be before it or after it
    assert answers == {2: "cancelled", 3: True, 5: False, 6: False}
    raw.send(2, "cancel", {"id": 2})
    assert raw.response(2) == (None, {"cancelled": False})


def test_cancelled_while_the_model_is_loaded(served: Served, raw: Raw) -> None:
    with served.client() as client:
        client.unload("tiny")
        ask, cancel = frame(2, "complete", {"prompt": "the", "max_tokens": 3}), frame(3, "cancel", {"id": 2})
        raw.send_bytes(ask + cancel)
        assert raw.response(2)[0]["name"] == "cancelled"
        assert client.complete("the", max_tokens=3, ignore_eos=True).read().usage.generated == 3


@pytest.mark.parametrize("n_bytes", [1, 3, 20, 50_000])
def test_half_a_frame(served: Served, n_bytes: int) -> None:
    """Nothing is begun for who vanishes in the middle of a frame, and nobody is kept waiting by who stays there."""
    whole = frame(2, "complete", {"prompt": PROMPT, "max_tokens": 1})
    assert len(whole) > n_bytes
    with closing(Raw(served.path)) as silent, served.client() as client:
        until(lambda: not client.status().requests)  # of the test before
        with closing(Raw(served.path)) as gone:
            gone.send_bytes(whole[:n_bytes])
        silent.send_bytes(whole[:n_bytes])
        assert client.complete("hello", max_tokens=2, ignore_eos=True).read().usage.generated == 2
        assert not client.status().requests
        silent.send_bytes(whole[n_bytes:])
        silent.wait_for("prefill")


def test_everything_at_once_and_gone(served: Served) -> None:
    """Requests whose answers nobody can be sent."""
    asks: list[tuple[str, dict[str, Any]]] = [
        ("status", {}), ("models", {}), ("tokenize", {"text": "a"}), ("complete", {"prompt": "the", "ignore_eos": True})
    ]  # fmt: skip
    for _ in range(20):
        with closing(Raw(served.path)) as raw:
            for i in range(2, 40):
                raw.send(i, *asks[i % 4])
    with served.client() as client:
        until(lambda: not client.status().requests)
        assert client.complete("hello", max_tokens=2, ignore_eos=True).read().usage.generated == 2
