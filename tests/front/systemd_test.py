"""What systemd is told, and which settings change while the daemon runs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from luced.config import Config
from luced.errors import ModelError
from luced.front.events import Event
from luced.front.reload import GIVEN, LIVE, changes
from luced.front.systemd import PINGS, Systemd
from tests.front.harness import running

WAIT_S = 30


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind(str(tmp_path / "notify"))
        ours.settimeout(WAIT_S)
        yield ours


def happens(systemd: Systemd, event: str, **facts: object) -> None:
    systemd.watch(Event("models", event, 0.0, facts))


def received(notified: socket.socket) -> list[str]:
    """All that has come."""
    notified.setblocking(False)
    states = []
    while True:
        try:
            states.append(notified.recv(1000).decode())
        except BlockingIOError:
            return states


def test_the_status_says_what_is_loading_and_loaded(notified: socket.socket) -> None:
    systemd = Systemd(notified.getsockname(), 0)
    systemd.ready()
    happens(systemd, "loading", model="a", done=0, total=0)
    happens(systemd, "loading", model="a", done=501, total=1000)
    happens(systemd, "loading", model="a", done=502, total=1000)  # nothing new
    happens(systemd, "loaded", model="a")
    happens(systemd, "loading", model="b", done=1, total=1)
    happens(systemd, "refused", model="b")
    happens(systemd, "engine_lost")
    assert received(notified) == [
        "READY=1\nSTATUS=no model is loaded",
        "STATUS=loading a: 0 %",
        "STATUS=loading a: 50 %",
        "STATUS=loaded a",
        "STATUS=loading b: 100 %; loaded a",
        "STATUS=loaded a",
        "STATUS=no model is loaded",
    ]


def test_no_name_of_a_model_is_another_message(notified: socket.socket) -> None:
    systemd = Systemd(notified.getsockname(), 0)
    happens(systemd, "loaded", model="a\nMAINPID=1")
    assert received(notified) == ["STATUS=loaded a MAINPID=1"]


async def test_it_pings_more_often_than_it_must(notified: socket.socket, autojump_clock: MockClock) -> None:
    with trio.move_on_after(29.9):
        await Systemd(notified.getsockname(), 30).run()
    assert received(notified) == ["WATCHDOG=1"] * PINGS


async def test_without_a_watchdog_it_does_not_ping(notified: socket.socket) -> None:
    await Systemd(notified.getsockname(), 0).run()
    assert not received(notified)


def test_what_changes_only_with_a_restart_stays() -> None:
    old = Config(Path("/s"), n_ctx=1, notify_socket="@systemd")
    new = Config(Path("/other"), n_ctx=2, n_batch=7, aliases={"a": "b"})
    config, live, fixed = changes(old, new)
    assert config == Config(Path("/s"), n_ctx=2, aliases={"a": "b"}, notify_socket="@systemd")
    assert sorted(live) == ["aliases", "n_ctx"]
    assert sorted(fixed) == ["n_batch", "socket"]
    assert {*LIVE, *GIVEN} <= set(Config.__dataclass_fields__)


async def test_a_reload_counts_for_the_next_request(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        with pytest.raises(Exception, match="short"):
            await client.call("tokenize", text="the", model="short")
        new = Config(house.daemon.config.socket, (tmp_path,), aliases={"short": "tiny"}, default_model="tiny")
        house.daemon.reload(lambda: new)
        assert (await client.call("tokenize", text="the", model="short"))["tokens"]


async def test_wrong_settings_change_nothing_and_are_said(tmp_path: Path, notified: socket.socket) -> None:
    def read_config() -> Config:
        raise ModelError("bad_config", "luced.toml: n_ctx must be at least 0")

    async with running(tmp_path, notify_socket=notified.getsockname()) as house:
        client = await house.connect()
        before = house.daemon.config
        house.daemon.reload(read_config)
        assert house.daemon.config is before
        assert (await client.call("tokenize", text="the"))["tokens"]
    _, reloading, ready, *_ = received(notified)
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert ready.startswith("READY=1\nSTATUS=settings not reloaded: ")
    assert "n_ctx" in ready
