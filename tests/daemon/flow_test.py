"""A client that stops reading, at the whole daemon with its real engine."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

import luce
from tests.daemon.served import BULKY, Served
from tests.tinygguf import tiny_chat_model

N_TOKENS = 1900  # of an answer
WAIT_S = 60


def until(client: luce.Client, condition: Callable[[luce.Status], bool]) -> luce.Status:
    end = time.monotonic() + WAIT_S
    while not condition(status := client.status()):
        assert time.monotonic() < end, status
    return status


def stopped(path: Path) -> socket.socket:
    """A connection that has asked for a long answer and reads nothing of it."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.fspath(path))
    params = {"prompt": "why", "max_tokens": N_TOKENS, "seed": 1, **BULKY}
    connection.sendall(msgpack.packb([0, 1, "hello", [{}]]) + msgpack.packb([0, 2, "complete", [params]]))
    return connection


def test_it_is_paused_gives_its_pages_up_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_chat_model(tmp_path / "tiny.gguf")
    monkeypatch.setenv("LUCE_PAUSE_S", "0")
    with (
        Served(tmp_path / "l.sock", "--model-dir", tmp_path, "--model", "tiny") as served,
        served.client() as client,
        stopped(served.path) as slow,
    ):
        status = until(client, lambda s: any(r.phase == "paused" for r in s.requests))
        assert 0 < status.requests[0].generated < N_TOKENS
        status = until(client, lambda s: s.models[0].cache is not None and s.models[0].cache.used == 0)
        before = status.models[0].cache
        assert before is not None
        assert before.preempted >= 1
        assert client.complete("hello", max_tokens=5, ignore_eos=True).read().usage.generated == 5
        (row,) = client.status().requests
        assert (row.phase, row.generated) == ("paused", status.requests[0].generated)
        unpacker = msgpack.Unpacker()
        said: list[int] = []
        result = None
        while result is None:
            unpacker.feed(slow.recv(1 << 16))
            for message in unpacker:
                if message[:2] == [2, "text"]:
                    said += message[2][0]["tokens"]
                elif message[:2] == [1, 2]:
                    assert message[2] is None
                    result = message[3]
        (choice,) = result["choices"]
        assert len(said) == N_TOKENS
        assert said == choice["tokens"]
        alone = client.complete("why", max_tokens=N_TOKENS, ignore_eos=True, seed=1).read()
        assert list(alone.choices[0].tokens) == said


def test_the_log_names_the_request_and_has_no_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_chat_model(tmp_path / "tiny.gguf")
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    with Served(tmp_path / "l.sock", "--model-dir", tmp_path, "--model", "tiny") as served, served.client() as client:
        client.chat("xyzzy plugh", max_tokens=3, ignore_eos=True).read()
        pid = client.status().engine.pid
        assert pid is not None
        stream = client.chat("xyzzy plugh", max_tokens=N_TOKENS, ignore_eos=True)
        pieces = iter(stream)
        next(pieces)
        os.kill(pid, signal.SIGKILL)
        list(pieces)
        assert served.wait_for("chat ended request=1/4 uid=").startswith("<6>luced.session: ")
        assert served.wait_for("engine is lost").startswith("<3>luced.supervisor: ")
    assert "chat ended request=1/2 uid=" in "".join(served.lines)
    assert "xyzzy" not in "".join(served.lines)


def test_in_the_end_it_loses_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_chat_model(tmp_path / "tiny.gguf")
    monkeypatch.setenv("LUCE_STALL_S", "1")
    with (
        Served(tmp_path / "l.sock", "--model-dir", tmp_path, "--model", "tiny") as served,
        served.client() as client,
        stopped(served.path) as slow,
    ):
        assert "connection=2" in served.wait_for("stalled")
        until(client, lambda s: not s.requests)
        while slow.recv(1 << 16):
            pass
