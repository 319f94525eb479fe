"""Subscriptions of both clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from luce import AsyncClient, Client, Event, LuceError
from tests.clients.fake import FakeDaemon

DEGRADED = Event("degradations", "unloaded", 1.5, {"model": "fake"})


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "luced.sock") as daemon:
        yield daemon


def test_events_come_until_it_is_left(daemon: FakeDaemon) -> None:
    with Client(daemon.path, timeout=60) as client:
        for event in client.subscribe("degradations"):
            assert event == DEGRADED
            break
        assert daemon.wait_for("cancel").params == {"id": daemon.wait_for("subscribe").id}
        assert client.complete("a b").read().text == "a b"


def test_all_topics_beside_a_stream(daemon: FakeDaemon) -> None:
    with Client(daemon.path, timeout=60) as client, client.subscribe() as events:
        assert daemon.wait_for("subscribe").params == {"topics": ["models", "requests", "degradations"]}
        assert client.complete("a b").read().text == "a b"
        told = iter(events)
        assert [next(told).topic for _ in range(3)] == ["models", "requests", "degradations"]


def test_who_is_dropped_is_told(daemon: FakeDaemon) -> None:
    with Client(daemon.path, timeout=60) as client, pytest.raises(LuceError, match="not read") as error:
        list(client.subscribe("requests"))
    assert error.value.name == "too_slow"


async def test_async(daemon: FakeDaemon) -> None:
    with trio.fail_after(60):
        async with AsyncClient(daemon.path) as client:
            async with client.subscribe("degradations") as events:
                assert await events.__anext__() == DEGRADED
                assert (await client.complete("a b").read()).text == "a b"
            await trio.to_thread.run_sync(daemon.wait_for, "cancel")
            async with client.subscribe("requests") as events:
                assert (await events.__anext__()).topic == "requests"
                with pytest.raises(LuceError) as error:
                    await events.__anext__()
                assert error.value.name == "too_slow"


async def test_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "luced.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        with socket.socket(socket.AF_UNIX) as first, trio.fail_after(60):
            first.connect(str(path))  # and nobody else can, until it is accepted
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connect_and_leave, path)
                await trio.testing.wait_all_tasks_blocked()
                for is_last in (False, True):
                    accepted, _ = await trio.to_thread.run_sync(listening.accept)
                    with accepted:
                        if is_last:
                            assert b"hello" in accepted.recv(1000)


async def connect_and_leave(path: Path) -> None:
    with pytest.raises(LuceError, match="closed the connection"):
        async with AsyncClient(path):
            pass
