"""Subscriptions: what is told to whom, and that nobody is held up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio.testing

from luced.front.daemon import Daemon
from luced.front.events import MAX_UNREAD
from tests.front.harness import Client, House, running


async def subscribe(client: Client, *topics: str) -> int:
    request = await client.send("subscribe", topics=list(topics))
    first = await client.note(request, "event")
    assert (first["topic"], first["event"], first["facts"]) == ("", "subscribed", {"topics": list(topics)})
    return request


async def hear(client: Client, request: int, event: str) -> dict[str, Any]:
    """The facts of the next such event."""
    while True:
        fields = await client.note(request, "event")
        assert fields["at"] > 1.7e9
        if fields["event"] == event:
            facts: dict[str, Any] = fields["facts"]
            return facts


async def test_models_are_told(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client, other = await house.connect(), await house.connect()
        request = await subscribe(client, "models")
        await other.call("complete", prompt="say:a", max_tokens=1)
        assert await hear(client, request, "loading") == {"model": "tiny", "done": 0, "total": 1000}
        assert (await hear(client, request, "loaded"))["context"] == 2048
        await other.refused("complete", prompt="x", model="bad")
        facts = await hear(client, request, "refused")
        assert facts == {"model": "bad", "error": "bad_model_file", "message": "bad.gguf is bad"}


async def test_requests_are_told_without_their_prompts(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client, other = await house.connect(), await house.connect()
        request = await subscribe(client, "requests")
        await other.call("complete", prompt="say:secret", max_tokens=6)
        came = await hear(client, request, "came")
        assert came == {"request": 2, "connection": 2, "client": "test 1.0", "method": "complete"}
        ended = await hear(client, request, "ended")
        assert ended.pop("age_s") > 0
        outcome = {"model": "tiny", "error": "", "phase": "decode", "prompt": 10, "generated": 6}
        assert ended == came | outcome
        running_request = await other.send("complete", prompt="say:a;wait")
        await other.note(running_request, "text")
        await other.call("cancel", id=running_request)
        assert (await hear(client, request, "ended"))["error"] == "cancelled"
        await other.send("complete", prompt="say:a;wait")
        await other.stream.aclose()
        assert (await hear(client, request, "ended"))["error"] == "connection_lost"


async def test_degradations_are_told(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client, other = await house.connect(), await house.connect()
        request = await subscribe(client, "degradations")
        await other.call("complete", prompt="die;say:alive", max_tokens=5)
        facts = await hear(client, request, "engine_lost")
        assert facts["requests"] == 1
        assert "SIGKILL" in facts["failure"]


async def test_a_user_hears_of_its_own_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Daemon, "_role", lambda *_: "user")
    async with running(tmp_path) as house:
        one, two = await house.connect(tenant="one"), await house.connect(tenant="two")
        request = await subscribe(one, "requests")
        await two.call("complete", prompt="say:a", max_tokens=1)
        mine = await one.send("complete", prompt="say:a", max_tokens=1)
        assert (await hear(one, request, "came"))["request"] == mine


async def test_it_ends_by_cancel(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        request = await subscribe(client, "models", "requests")
        assert await client.call("cancel", id=request) == {"cancelled": True}
        error, _ = await client.response(request)
        assert error is not None
        assert error["name"] == "cancelled"
        assert not house.daemon.events._subscribers


@pytest.mark.parametrize("topics", [[], ["weather"], ["models", 1]])
async def test_topics_are_checked(tmp_path: Path, topics: list[Any]) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        assert (await client.refused("subscribe", topics=topics))["name"] == "bad_parameter"


async def publish_until_dropped(house: House) -> int:
    """How many events it took."""
    n = 0
    while house.daemon.events._subscribers:
        house.daemon.events.publish("models", "loading", model="tiny", done=n, total=1000, padding="x" * 1000)
        n += 1
        await trio.testing.wait_all_tasks_blocked()
    return n


async def test_who_does_not_read_is_dropped_and_holds_nobody_up(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        slow, quick = await house.connect(), await house.connect()
        request = await subscribe(slow, "models")
        assert await publish_until_dropped(house) > MAX_UNREAD
        assert await quick.call("complete", prompt="say:a", max_tokens=1)
        error, _ = await slow.response(request)
        assert error is not None
        assert error["name"] == "too_slow"
        assert error["data"] == {"limit": "events", "value": MAX_UNREAD}
        assert await slow.call("status")
