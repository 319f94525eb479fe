"""The engine's lives: loads that many wait for, deaths before and after the first word, starts that fail."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import trio

from luced.front import supervisor
from tests.front.harness import Client, House, running


async def open_gate(house: House) -> None:
    """Lets the model `slow` be loaded."""
    await trio.to_thread.run_sync((house.folder / "go").write_bytes, b"")


async def test_a_load_is_asked_for_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with running(tmp_path) as house:
        clients = [await house.connect() for _ in range(3)]
        requests = [await c.send("complete", prompt="say:a", max_tokens=1, model="slow") for c in clients]
        for client, request in zip(clients, requests, strict=True):
            progress = await client.note(request, "progress")
            assert progress == {"id": request, "phase": "load", "done": 0, "total": 1000, "cached": 0}
        await open_gate(house)
        for client, request in zip(clients, requests, strict=True):
            _, result = await client.response(request)
            assert result is not None
            assert result["timings"]["load_s"] > 0
        result = await clients[0].call("complete", prompt="log;stop", model="slow")
        log = json.loads(result["choices"][0]["text"])
        assert len([line for line in log if line.startswith("Load ")]) == 1


async def test_a_cancelled_wait_leaves_the_load_to_the_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with running(tmp_path) as house:
        client = await house.connect()
        one, two = [await client.send("complete", prompt="say:a", max_tokens=1, model="slow") for _ in range(2)]
        await client.note(one, "progress")
        await client.call("cancel", id=one)
        await open_gate(house)
        assert (await client.response(two))[0] is None


async def test_a_refused_model_can_be_asked_for_again(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        for _ in range(2):
            assert (await client.refused("complete", prompt="x", model="bad"))["name"] == "bad_model_file"
        assert (await client.call("complete", prompt="say:a", max_tokens=1))["model"] == "tiny"


async def test_requests_that_had_said_nothing_run_again(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        waiting = await client.send("complete", prompt="wait;say:w", max_tokens=1)
        await client.note(waiting, "progress")
        result = await client.call("complete", prompt="die;say:alive", max_tokens=5)
        assert result["choices"][0]["text"] == "alive"
        await client.call("complete", prompt="go", max_tokens=0)
        error, other = await client.response(waiting)
        assert error is None
        assert other is not None
        assert other["choices"][0]["text"] == "w"
        engine = (await client.call("status"))["engine"]
        assert (engine["state"], engine["restarts"]) == ("ready", 1)
        assert "SIGKILL" in engine["last_failure"]


async def test_a_request_that_had_spoken_gets_an_error(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        error = await client.refused("complete", prompt="say:half;die;say:more", max_tokens=8)
        assert error["name"] == "engine_failed"
        assert "SIGKILL" in error["message"]
        unseen = await client.call("complete", prompt="say:whole", max_tokens=5)
        assert unseen["choices"][0]["text"] == "whole"


async def test_without_stream_nothing_had_been_said(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        result = await client.call("complete", prompt="say:half;die;say:more", max_tokens=8, stream=False)
        assert result["choices"][0]["text"] == "halfmore"


async def test_a_request_that_always_kills_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        assert (await client.refused("complete", prompt="die!"))["name"] == "engine_failed"
        assert (await client.call("complete", prompt="say:a", max_tokens=1))["choices"][0]["text"] == "a"
        assert (await client.call("status"))["engine"]["restarts"] == 3


async def test_a_model_that_kills_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        assert (await client.refused("complete", prompt="x", model="deadly"))["name"] == "engine_failed"
        assert (await client.call("complete", prompt="say:a", max_tokens=1))["model"] == "tiny"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((sys.executable, "-c", "raise SystemExit('libluce is not there')"), "libluce is not there"),
        (("/nonexistent/engine",), "No such file"),
        ((sys.executable, "-c", "import os, sys; os.write(int(sys.argv[-1]), b'nonsense')"), "exited"),
    ],
)
async def test_an_engine_that_does_not_start_says_why(tmp_path: Path, command: tuple[str, ...], words: str) -> None:
    async with running(tmp_path, engine=command) as house:
        client = await house.connect()
        error = await client.refused("complete", prompt="x")
        assert error["name"] == "engine_failed"
        assert words in error["message"]
        assert (await client.call("status"))["engine"]["state"] == "failed"
        assert (await client.call("tokenize", text="a"))["tokens"] == [100]


async def test_an_engine_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_S", 0.01)
    async with running(tmp_path, engine=(sys.executable, "-c", "import signal; signal.pause()")) as house:
        assert isinstance(await house.connect(), Client)
    assert house.daemon.supervisor.state == "stopped"
