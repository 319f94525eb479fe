"""Connections: who may say what when, many requests at once, and every way in which one can end."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgpack
import pytest
import trio
import trio.testing

from luce import messages
from luce.structs import TYPES
from luced.front.daemon import Daemon
from tests.front.harness import Client, House, running


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with running(tmp_path) as house:
        yield house


async def engine_log(house: House) -> list[str]:
    """What the engine has been told so far."""
    client = await house.connect()
    result = await client.call("complete", prompt="log;stop")
    log: list[str] = json.loads(result["choices"][0]["text"])
    return log


async def begin(client: Client, prompt: str = "say:a;wait") -> int:
    """A request that the engine works on: its first piece has come."""
    request = await client.send("complete", prompt=prompt, max_tokens=3)
    await client.note(request, "text")
    return request


async def test_hello_tells_who_and_what(house: House) -> None:
    client = await house.connect(greet=False)
    hello = await client.call("hello", level=9, client="me")
    assert hello["level"] == messages.LEVEL
    assert hello["instance"] == house.daemon.instance
    assert hello["tenant"] == str(os.getuid())
    assert hello["role"] == "operator"
    assert hello["methods"] == sorted(messages.BY_NAME)
    assert hello["limits"] == {
        "frame_bytes": 16 << 20, "nesting": 64, "items": 1 << 21,
        "requests": 512, "connections": 1024, "connections_of_user": 768, "queue": 1024, "queue_of_user": 512,
    }  # fmt: skip


async def test_hello_comes_first_and_once(house: House) -> None:
    client = await house.connect(greet=False)
    assert (await client.refused("status"))["name"] == "hello_first"
    assert await client.closed()
    client = await house.connect()
    assert (await client.refused("hello"))["name"] == "bad_frame"
    assert await client.closed()


async def test_hello_and_a_request_may_come_together(house: House) -> None:
    client = await house.connect(greet=False)
    await client.stream.send_all(msgpack.packb([0, 1, "hello", []]) + msgpack.packb([0, 2, "status", []]))
    assert (await client.response(2))[0] is None


async def test_an_unknown_method_names_itself(house: House) -> None:
    client = await house.connect()
    error = await client.refused("chatt")
    assert error["name"] == "unknown_method"
    assert "chatt" in error["message"]
    assert (await client.call("status"))["pid"] == os.getpid()


@pytest.mark.parametrize(
    "frame",
    [
        b"\xc1",
        b"\x01",
        msgpack.packb([0, 1, "status", [1]]),
        msgpack.packb([2, "cancel", [{}]]),
        msgpack.packb([1, 1, None, None]),
    ],
)
async def test_a_broken_frame_closes_that_connection_alone(house: House, frame: bytes) -> None:
    other, client = await house.connect(), await house.connect()
    await client.stream.send_all(frame)
    error, _ = await client.response(0)
    assert error is not None
    assert error["name"] == "bad_frame"
    assert await client.closed()
    assert await other.call("status")


async def test_cancel_ends_a_request_and_the_engine_forgets_it(house: House) -> None:
    client = await house.connect()
    request = await begin(client)
    assert await client.call("cancel", id=request) == {"cancelled": True}
    error, _ = await client.response(request)
    assert error is not None
    assert error["name"] == "cancelled"
    assert "Abandon 1" in await engine_log(house)
    assert await client.call("cancel", id=request) == {"cancelled": False}


async def test_the_end_of_a_connection_ends_its_requests(house: House) -> None:
    client = await house.connect()
    await begin(client)
    await begin(client)
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert {"Abandon 1", "Abandon 2"} <= set(await engine_log(house))
    assert house.daemon.answers == set()


async def test_a_request_that_ended_is_not_abandoned(house: House) -> None:
    client = await house.connect()
    await client.call("complete", prompt="say:a", max_tokens=1)
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert not [line for line in await engine_log(house) if line.startswith("Abandon")]


async def test_requests_of_one_connection_run_at_once(house: House) -> None:
    client = await house.connect()
    first = await begin(client)
    second = await client.call("complete", prompt="say:b;go", max_tokens=1)
    assert second["choices"][0]["text"] == "b"
    _, result = await client.response(first)
    assert result is not None
    assert result["choices"][0]["text"] == "aab"


async def test_two_clients_do_not_see_each_other(house: House) -> None:
    one, two = await house.connect(), await house.connect()
    first = await begin(one, "say:1;wait")
    second = await begin(two, "say:2;wait")
    assert await two.call("cancel", id=second + 100) == {"cancelled": False}
    await (await house.connect()).call("complete", prompt="go", max_tokens=0)
    for client, request, text in [(one, first, "1ab"), (two, second, "2ab")]:
        _, result = await client.response(request)
        assert result is not None
        assert result["choices"][0]["text"] == text


async def test_an_id_that_is_in_use_is_refused(house: House) -> None:
    client = await house.connect()
    request = await begin(client)
    await client.stream.send_all(msgpack.packb([0, request, "status", [{}]]))
    error, _ = await client.response(0)
    assert error is not None
    assert f"request {request} is still running" in error["message"]
    assert await client.closed()


async def test_too_many_requests_are_refused(house: House) -> None:
    client = await house.connect()
    for _ in range(512):
        await begin(client)
    error = await client.refused("status")
    assert error["name"] == "busy"
    assert "512" in error["message"]
    assert error["data"].items() >= {"limit": "requests", "value": 512}.items()
    assert 0.1 <= error["data"]["retry_after_s"] <= 60
    assert await client.call("cancel", id=3) == {"cancelled": True}
    assert await client.call("status")


async def test_a_user_sees_its_own_requests_and_names_no_files(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Daemon, "_role", lambda *_: "user")
    one, two = await house.connect(tenant="one"), await house.connect(tenant="two")
    all_of_uid = await house.connect()
    await begin(one)
    await begin(two)
    seen = [len((await client.call("status"))["requests"]) for client in (one, two, all_of_uid)]
    assert seen == [1, 1, 2]
    error = await one.refused("complete", prompt="x", model=str(house.folder / "tiny.gguf"))
    assert error["name"] == "not_permitted"


async def test_a_slow_reader_holds_up_itself_alone(house: House) -> None:
    slow, quick = await house.connect(), await house.connect()
    requests = [await slow.send("complete", prompt="say:a", max_tokens=1500, logprobs=32) for _ in range(2)]
    while len((await quick.call("status"))["requests"]) < 2:
        pass
    assert (await quick.call("complete", prompt="say:b", max_tokens=1))["choices"][0]["text"] == "b"
    await trio.testing.wait_all_tasks_blocked()
    assert len((await quick.call("status"))["requests"]) == 2  # although the engine has said it all
    for request in requests:
        error, result = await slow.response(request)
        assert error is None
        assert result is not None
        assert len(slow.text(request)) == 1500


async def test_who_asks_without_listening_is_not_listened_to(house: House) -> None:
    client, other = await house.connect(), await house.connect()
    n = 5000
    frames = b"".join(msgpack.packb([0, 10 + i, "status", []]) for i in range(n))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.stream.send_all, frames)
        await trio.testing.wait_all_tasks_blocked()
        assert max(len(session.calls) for session in house.daemon.sessions) <= 513
        assert await other.call("status")
        for i in range(n):
            error, _ = await client.response(10 + i)
            assert error is None or error["name"] == "busy"


async def test_status_tells_what_runs_and_no_prompt(house: House) -> None:
    client = await house.connect()
    request = await begin(client, "secret;say:a;wait")
    status = await client.call("status")
    (row,) = status["requests"]
    assert row.pop("age_s") >= 0
    assert row == {
        "id": request, "client": "test 1.0", "model": "tiny", "phase": "decode", "prompt": 17, "generated": 1
    }  # fmt: skip
    assert "secret" not in str(status)
    assert status["engine"]["state"] == "ready"
    assert status["engine"]["restarts"] == 0
    assert status["socket"]["path"] == str(house.daemon.listener.path)
    (model,) = status["models"]
    assert model["memory"] == {"weights": 1000}
    assert model["context"] == 2048
    assert model["cache"] == {
        "pages": 14, "used": 2, "cached": 5, "steps": 9, "rows": 80, "cached_tokens": 7, "preempted": 1, "evicted": 2
    }  # fmt: skip
    assert status["inference_socket"] is None


async def test_models_tells_state_and_default(house: House) -> None:
    client = await house.connect()
    await client.call("complete", prompt="say:a", max_tokens=1)
    rows = {row["name"]: row for row in (await client.call("models"))["models"]}
    assert rows.keys() >= {"tiny", "slow"}
    assert (rows["tiny"]["state"], rows["tiny"]["default"]) == ("loaded", True)
    assert (rows["slow"]["state"], rows["slow"]["default"]) == ("here", False)
    assert {field.name for t in TYPES if t.name == "Model" for field in t.fields} == rows["tiny"].keys()


async def test_shutdown_tells_the_requests(house: House) -> None:
    client = await house.connect()
    request = await begin(client)
    house.daemon.stop()
    error, _ = await client.response(request)
    assert error is not None
    assert error["name"] == "shutting_down"
    assert await client.closed()
