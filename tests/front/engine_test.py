"""The engine's lives: loads that many wait for, deaths before and after the first word, starts that fail."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from luced.front import guilty, supervisor
from tests.front.harness import Client, House, Map, running


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


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next engine starts without delay."""
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.0,))


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


async def complete(house: House, **params: Any) -> tuple[list[Map], Map]:
    """Its notifications and its result."""
    client = await house.connect()
    request = await client.send("complete", **params)
    error, result = await client.response(request)
    assert error is None, error
    assert result is not None
    return [fields for _, fields in client.notes[request]], result


async def test_a_request_that_had_spoken_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        notes, result = await complete(house, prompt="say:half;die;say:more", max_tokens=8, logprobs=2)
        assert result["choices"][0]["text"] == "halfmore"
        assert len(result["choices"][0]["logprobs"]) == 8
        assert "".join(note.get("text", "") for note in notes) == "halfmore"
        phases = [note["phase"] for note in notes if "phase" in note]
        assert "load" not in phases[phases.index("prefill") : phases.index("restart")]
        assert phases[-1] == "prefill"
        (restart,) = [note for note in notes if note.get("phase") == "restart"]
        assert (restart["done"], restart["total"]) == (1, 0)
        assert 0 < result["timings"]["restart_s"] < result["timings"]["total_s"]
        assert result["usage"]["generated"] == 8
        assert result["degraded"] == []  # it is what was asked for


@pytest.mark.parametrize(
    ("prompt", "params", "text"),
    [
        (r"say:h\xc3;die;say:\xa9llo", {"max_tokens": 6}, "h\u00e9llo"),
        ("say:ab;die;say:cd", {"max_tokens": 4, "stop": ["bc"]}, "a"),
        ("say:ab;die;say:cd", {"max_tokens": 4, "stop": ["bx"]}, "abcd"),
        ("say:ab;die;stop", {"max_tokens": 4}, "ab"),
        ("say:half;die;say:more", {"max_tokens": 8, "stream": False}, "halfmore"),
    ],
)
async def test_what_was_held_back_is_not_lost(tmp_path: Path, prompt: str, params: Map, text: str) -> None:
    async with running(tmp_path) as house:
        notes, result = await complete(house, prompt=prompt, **params)
        assert result["choices"][0]["text"] == text
        if params.get("stream", True):
            assert "".join(note.get("text", "") for note in notes) == text


async def test_each_answer_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        _, result = await complete(house, prompt="say:ab;die;say:cd", max_tokens=6, n=3)
        assert [choice["text"] for choice in result["choices"]] == ["abcdab"] * 3


async def test_requests_end_while_the_engine_is_away(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with running(tmp_path) as house:
        client, other = await house.connect(), await house.connect()
        params: Map = {"model": "slow", "prompt": "say:ab;wait;die;say:cd", "max_tokens": 4}
        requests = [(client, await client.send("complete", **params)) for _ in range(2)]
        requests.append((other, await other.send("complete", **params)))
        late = await client.send("complete", **params, deadline_s=60)
        await open_gate(house)
        for who, request in [*requests, (client, late)]:
            await who.note(request, "text")
        await other.send("complete", model="slow", prompt="go", max_tokens=0)
        for who, request in requests:
            while (await who.note(request, "progress"))["phase"] != "load":
                pass
        await other.stream.aclose()
        await client.call("cancel", id=requests[0][1])
        cancelled, _ = await client.response(requests[0][1])
        assert cancelled is not None
        assert cancelled["name"] == "cancelled"
        house.expire(late)
        error, _ = await client.response(late)
        assert error is not None
        assert (error["name"], error["data"]["generated"]) == ("deadline", 2)
        await open_gate(house)
        again = await client.call("complete", prompt="log;go;stop", model="slow")
        log = json.loads(again["choices"][0]["text"])
        assert [line.split()[0] for line in log] == ["Load", "Generate", "Generate"]  # it never heard of the others
        _, result = await client.response(requests[1][1])
        assert result is not None
        assert result["choices"][0]["text"] == "abcd"


async def test_a_request_that_is_always_killed_is_given_up_and_not_blamed(tmp_path: Path, at_once: None) -> None:
    async with running(tmp_path, state_dir=tmp_path) as house:
        client = await house.connect()
        error = await client.refused("complete", prompt="die!")
        assert (error["name"], error["message"]) == (
            "engine_failed", "the engine was killed by SIGKILL, 10 times in a row"
        )  # fmt: skip
        assert "memory" in error["remedy"]
        assert (await client.call("complete", prompt="say:a", max_tokens=1))["choices"][0]["text"] == "a"
        assert (await client.call("status"))["engine"]["restarts"] == 10
    assert not (tmp_path / "reports").exists()


async def test_one_fault_is_forgiven(tmp_path: Path) -> None:
    async with running(tmp_path, state_dir=tmp_path) as house:
        _, result = await complete(house, prompt="say:half;fault;say:more", max_tokens=8)
        assert result["choices"][0]["text"] == "halfmore"
    assert not (tmp_path / "reports").exists()


async def test_a_request_that_the_engine_dies_of_is_refused(tmp_path: Path, at_once: None) -> None:
    async with running(tmp_path, state_dir=tmp_path) as house:
        client = await house.connect()
        error = await client.refused("complete", prompt="say:xyzzy;fault!;say:more", max_tokens=9)
        assert error["name"] == "engine_crash"
        assert "SIGSEGV" in error["message"]
        assert (await client.call("status"))["engine"]["restarts"] == 2
        (path,) = (tmp_path / "reports").iterdir()
        assert path.name == error["data"]["report"]
        report = json.loads(path.read_text())
        assert (report["failure"], report["request"]["generated"]) == ("was killed by SIGSEGV", [5])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "xyzzy" not in path.read_text()
        assert str([3 + ord(c) for c in "xyz"])[1:-1] not in path.read_text()


async def test_asked_again_it_costs_no_engine(tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, state_dir=tmp_path) as house:
        client, other = await house.connect(), await house.connect(tenant="other")

        async def n_restarts(of: Client, prompt: str, **params: Any) -> int:
            error = await of.refused("complete", prompt=prompt, **params)
            assert error["name"] == "engine_crash"
            restarts: int = (await client.call("status"))["engine"]["restarts"]
            return restarts

        assert await n_restarts(client, "fault!") == 2
        assert await n_restarts(client, "fault!", seed=7, priority="batch") == 2
        assert (await client.call("complete", prompt="say:a", max_tokens=1))["choices"][0]["text"] == "a"
        assert await n_restarts(client, "fault!", top_k=7) == 4  # it is not the same
        assert await n_restarts(other, "fault!") == 6  # nor is this, to those who must not hear of each other
        assert await n_restarts(client, "say:a;fault!") == 8
        assert await n_restarts(client, "say:a;fault!") == 10  # what it has said may have been the reason
        monkeypatch.setattr(guilty, "time", SimpleNamespace(monotonic=lambda: math.inf))
        assert await n_restarts(client, "fault!") == 12


async def test_a_model_that_kills_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        error = await client.refused("complete", prompt="x", model="deadly")
        assert (error["name"], "2 times in a row" in error["message"]) == ("engine_failed", True)
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
