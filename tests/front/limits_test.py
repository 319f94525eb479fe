"""Deadlines, the bounded queue, and readers that are too slow."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from luced.errors import RequestError
from luced.front import daemon as daemon_module
from luced.front import queue
from luced.front.request import MAX_AHEAD
from tests.front.harness import Client, House, running


async def engine_log(house: House) -> list[str]:
    client = await house.connect()
    result = await client.call("complete", prompt="log;stop")
    log: list[str] = json.loads(result["choices"][0]["text"])
    return log


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.testing.wait_all_tasks_blocked(0.001)


async def test_a_deadline_says_how_far_it_was_and_the_engine_forgets_it(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        assert await client.call("complete", prompt="say:a", max_tokens=1, deadline_s=60)
        request = await client.send("complete", prompt="say:ab;wait", deadline_s=60)
        for _ in "ab":
            await client.note(request, "text")
        house.expire(request)
        error, _ = await client.response(request)
        assert error is not None
        assert error["name"] == "deadline"
        assert error["data"] == {"deadline_s": 60, "phase": "decode", "prompt": 11, "generated": 2}
        assert "Abandon 2" in await engine_log(house)
        assert not house.daemon.answers


async def test_a_deadline_counts_while_the_model_loads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with running(tmp_path) as house:
        client = await house.connect()
        request = await client.send("complete", prompt="say:a", model="slow", deadline_s=60)
        await client.note(request, "progress")
        house.expire(request)
        error, _ = await client.response(request)
        assert error is not None
        assert (error["name"], error["data"]["phase"]) == ("deadline", "load")
        await trio.to_thread.run_sync((tmp_path / "go").write_bytes, b"")


async def test_the_configuration_bounds_every_request(tmp_path: Path) -> None:
    async with running(tmp_path, deadline_s=1) as house:
        client = await house.connect()
        errors = [await client.send("complete", prompt="say:a;wait", **asked) for asked in ({}, {"deadline_s": 60.0})]
        for request in errors:
            error, _ = await client.response(request)
            assert error is not None
            assert (error["name"], error["data"]["deadline_s"]) == ("deadline", 1)


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
async def test_a_clock_that_jumps_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    async with running(tmp_path) as house:
        client, other = await house.connect(), await house.connect()
        request = await client.send("complete", prompt="say:a;wait", max_tokens=2, deadline_s=60, keep_alive=60)
        await client.note(request, "text")
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        await other.call("complete", prompt="go", max_tokens=0)
        error, result = await client.response(request)
        assert error is None
        assert result is not None
        assert 0 <= result["timings"]["total_s"] < 60
        (model,) = (await client.call("status"))["models"]
        assert 0 < model["until"] - time.time() <= 60  # in the time that is now


async def test_a_cancel_before_the_deadline_is_a_cancel(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        request = await client.send("complete", prompt="say:a;wait", deadline_s=60)
        await client.note(request, "text")
        await client.call("cancel", id=request)
        error, _ = await client.response(request)
        assert error is not None
        assert error["name"] == "cancelled"


@pytest.mark.parametrize(
    ("limit", "settings"),
    [("queue", {"max_queue": 2}), ("queue_of_user", {"max_queue_of_user": 2})],
)
async def test_the_queue_is_bounded(tmp_path: Path, limit: str, settings: dict[str, Any]) -> None:
    async with running(tmp_path, **settings) as house:
        one, two = await house.connect(), await house.connect()
        assert (await (await house.connect(greet=False)).call("hello"))["limits"][limit] == 2
        await one.call("complete", prompt="say:a", max_tokens=1)
        requests = [await client.send("complete", prompt="hold", max_tokens=1) for client in (one, two)]
        await until(lambda: len(house.daemon.answers) == 2)
        error = await two.refused("complete", prompt="say:a", max_tokens=1)
        assert error["name"] == "busy"
        assert error["data"].items() >= {"limit": limit, "value": 2}.items()
        assert error["data"]["retry_after_s"] >= queue.LEAST_S
        await one.call("cancel", id=requests[0])
        await one.response(requests[0])
        assert await two.call("complete", prompt="go", max_tokens=0)
        assert (await two.response(requests[1]))[0] is None


async def test_who_runs_does_not_wait(tmp_path: Path) -> None:
    async with running(tmp_path, max_queue=1) as house:
        client = await house.connect()
        for _ in range(5):
            await client.note(await client.send("complete", prompt="say:a;wait", max_tokens=1), "text")


def test_the_rate_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("luced.front.queue.time.monotonic", lambda: now[0])
    waiting = queue.Queue(4, 4)
    calls: list[Any] = [FakeCall() for _ in range(12)]
    for call in calls[:4]:
        waiting.enter(call)
    now[0] += 7.0
    assert waiting.retry_after_s() == 7.0  # nothing has got on for so long
    for i, call in enumerate(calls[:8]):
        now[0] += 2.0
        waiting.leave(call)
        waiting.enter(calls[i + 4])
    assert waiting.retry_after_s() == 1.75  # eight places, the first of them 14 s ago
    with pytest.raises(RequestError) as refused:
        waiting.enter(FakeCall())  # type: ignore[arg-type]
    assert refused.value.data["retry_after_s"] == 1.75
    for call in calls:
        waiting.leave(call)
    now[0] += 10_000.0
    waiting.enter(calls[0])
    now[0] += 3.0
    assert waiting.retry_after_s() == 3.0  # what was before an idle time does not count


class FakeCall:
    def __init__(self) -> None:
        self.session = self
        self.peer = self
        self.uid = 1


async def test_five_hundred_wait_and_all_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        clients = [await house.connect() for _ in range(5)]
        asked = [
            (client, await client.send("complete", prompt=f"hold;say:{i}", max_tokens=3))
            for i in range(100, 200)
            for client in clients
        ]
        await until(lambda: len(house.daemon.answers) == 500)
        status = await clients[0].call("status")
        assert {row["phase"] for row in status["requests"]} <= {"queue", "load"}
        await (await house.connect()).call("complete", prompt="go", max_tokens=0)
        for i, (client, request) in enumerate(asked):
            error, result = await client.response(request)
            assert error is None
            assert result is not None
            assert result["choices"][0]["text"] == str(100 + i // 5)


async def test_the_place_in_the_queue_is_told_when_it_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client, other = await house.connect(), await house.connect()
        await other.call("complete", prompt="say:a", max_tokens=1)  # the model is there
        requests: list[int] = []
        while len(requests) < 3:
            requests.append(await client.send("complete", prompt="hold", max_tokens=1))
            await until(lambda: [a.phase for a in house.daemon.answers] == ["queue"] * len(requests))

        async def places() -> list[int]:
            await other.call("complete", prompt="queue", max_tokens=0)
            return [(await queued(client, request))["done"] for request in requests]

        assert await places() == [0, 1, 2]
        await other.call("complete", prompt="queue", max_tokens=0)  # nothing has changed
        await client.call("cancel", id=requests.pop(0))
        assert await places() == [0, 1]


async def queued(client: Client, request: int) -> dict[str, Any]:
    while (progress := await client.note(request, "progress"))["phase"] != "queue":
        pass
    assert progress == {"id": request, "phase": "queue", "done": progress["done"], "total": 0}
    return progress


async def test_a_slow_reader_pauses_its_request_in_the_engine(tmp_path: Path) -> None:
    async with running(tmp_path, pause_s=7) as house:
        client, other = await house.connect(), await house.connect()
        request = await client.send("complete", prompt="say:a*1499;wait", max_tokens=1500)
        await until(lambda: any(session.is_behind for session in house.daemon.sessions))  # so it stays: nobody reads
        await until(lambda: any(a.describe()["phase"] == "paused" for a in house.daemon.answers))
        assert (await other.call("status"))["requests"][0]["phase"] == "paused"
        pauses = [line for line in await engine_log(house) if line.startswith(("Pause", "Resume"))]
        assert pauses[-1] == "Pause 1 7"
        assert await other.call("complete", prompt="say:b", max_tokens=1)
        for _ in range(1499):
            await client.note(request, "text")
        pauses = [line for line in await engine_log(house) if line.startswith(("Pause", "Resume"))]
        assert pauses[-1] == "Resume 1"
        await other.call("complete", prompt="go", max_tokens=0)
        error, result = await client.response(request)
        assert error is None
        assert result is not None
        assert len(result["choices"][0]["text"]) == 1500


async def test_who_reads_is_not_paused(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        await client.call("complete", prompt="say:a", max_tokens=MAX_AHEAD - 1, stream=False)
        assert not [line for line in await engine_log(house) if line.startswith("Pause")]


async def test_who_never_reads_loses_the_connection(tmp_path: Path) -> None:
    async with running(tmp_path, stall_s=0.05) as house:
        client, other = await house.connect(), await house.connect()
        await client.send("complete", prompt="say:a", max_tokens=2000)
        await until(lambda: len(house.daemon.sessions) == 1)
        assert not house.daemon.answers
        assert await other.call("complete", prompt="say:b", max_tokens=1)


async def test_too_many_connections_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "MAX_SESSIONS_OF_UID", 2)
    async with running(tmp_path) as house:
        first, _ = await house.connect(), await house.connect()
        error = await (await house.connect(greet=False)).refused("hello")
        assert error["name"] == "busy"
        assert error["data"].items() >= {"limit": "connections_of_user", "value": 2}.items()
        assert await first.call("status")
