"""How long models stay, who makes room for whom, and what a restart of the engine leaves as it was. trio's mock clock
is all the time that passes."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from luce.errors import LuceError
from luced import link
from luced.config import Config
from luced.errors import EngineError
from luced.front.death import Death
from luced.front.residency import Residency
from luced.front.resident import Resident
from luced.front.supervisor import Supervisor
from luced.gguf.catalogue import Entry

MODEL_BYTES = 100
DEATH = Death(-9, was_ready=True)


class Engine:
    """Has memory for `room` models; answers every message at once, but for loads of `slow`."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.told: list[str] = []
        self.held: set[str] = set()
        self.state = "ready"
        self.ready: object | None = self
        self.residency: Residency
        self.roster = self
        self.ended: list[str] = []  # models whose waiting requests were told that it is not there

    def end(self, model: str, error: LuceError) -> None:
        self.ended.append(model)

    def failure(self) -> EngineError:
        return DEATH.error()

    def send(self, message: link.Message) -> None:
        match message:
            case link.Load(model, _, n_ctx, kv_type):
                self.told.append(f"load {model} {n_ctx} {kv_type}")
                self.residency.receive(link.Loading(model, 0, MODEL_BYTES))
                if model != "slow":
                    self.load(model)
            case link.Unload(model):
                self.told.append(f"unload {model}")
                self.held.discard(model)
                self.residency.receive(link.Unloaded(model))

    def load(self, model: str) -> None:
        lack_bytes = (len(self.held) + 1 - self.room) * MODEL_BYTES
        if lack_bytes > 0:
            error = LuceError("no_memory", "it does not fit", {"lack_bytes": lack_bytes})
            self.residency.receive(link.Refused(model, error.to_wire()))
        else:
            self.held.add(model)
            self.residency.receive(link.Loaded(model, "llama", 64, 300, {"weights": 60, "kv": 40}, 0.0))

    def restart(self) -> None:
        self.held.clear()
        self.residency.engine_lost(DEATH, hopeless=False)
        self.residency.engine_ready()


class Setting:
    """A residency with its engine, for models that are named."""

    def __init__(self, engine: Engine, **settings: Any) -> None:
        self.engine = engine
        self.residency = Residency(cast(Supervisor, engine), Config(Path("socket"), **settings))
        engine.residency = self.residency

    async def use(self, name: str, keep_alive: str | float | None = None) -> Resident:
        """One request, from its begin to its end."""
        with self.residency.hold(entry(name), keep_alive) as resident:
            await self.residency.loaded(resident, no_progress)
        return resident


def entry(name: str) -> Entry:
    return Entry(name, Path(f"/{name}.gguf"), 1)


async def no_progress(done: int, total: int) -> None:
    pass


async def pause(seconds: float) -> None:
    """Lets that much time pass, and then all that is due happen."""
    await trio.sleep(seconds)
    await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def two(nursery: trio.Nursery) -> Setting:
    """An engine that has memory for two models."""
    setting = Setting(Engine(2))
    nursery.start_soon(setting.residency.run)
    return setting


@pytest.mark.parametrize(
    ("keep_alive", "stays_s", "leaves_s"),
    [(None, 299, 301), ("10m", 599, 601), (90, 89, 91), ("1h30m", 5399, 5401), (-1, 1e9, None), ("-1m", 1e9, None)],
)
async def test_it_stays_for_keep_alive(
    autojump_clock: MockClock, two: Setting, keep_alive: str | float | None, stays_s: float, leaves_s: float | None
) -> None:
    await two.use("a", keep_alive)
    await pause(stays_s)
    assert two.engine.held == {"a"}
    if leaves_s is not None:
        await pause(leaves_s - stays_s)
        assert two.engine.held == set()
        assert two.residency.state("a") == "here"


async def test_0_is_not_at_all(autojump_clock: MockClock, two: Setting) -> None:
    with two.residency.hold(entry("a"), 0) as resident:
        await two.residency.loaded(resident, no_progress)
        await pause(1000)
        assert two.engine.held == {"a"}
    await trio.testing.wait_all_tasks_blocked()
    assert two.engine.held == set()


async def test_a_request_in_flight_holds_it(autojump_clock: MockClock, two: Setting) -> None:
    with two.residency.hold(entry("a"), "1s"):
        await two.use("a")
        await pause(1000)
        assert two.engine.held == {"a"}
    await pause(1.1)
    assert two.engine.held == set()


async def test_each_use_begins_its_time_anew_and_the_last_said_counts(autojump_clock: MockClock, two: Setting) -> None:
    await two.use("a", "10s")
    await pause(9)
    await two.use("a")
    await pause(9)
    assert two.engine.held == {"a"}
    await two.use("a", "20s")
    await pause(19)
    assert two.engine.held == {"a"}
    await pause(2)
    assert two.engine.held == set()


async def test_settings_of_daemon_and_model(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    setting = Setting(Engine(2), keep_alive="1s", n_ctx=32, models={"a": {"keep_alive": "3s", "kv_type": "q8_0"}})
    nursery.start_soon(setting.residency.run)
    await setting.use("a")
    await setting.use("b")
    assert setting.engine.told == ["load a 32 q8_0", "load b 32 f16"]
    await pause(2)
    assert setting.engine.held == {"a"}
    await pause(2)
    assert setting.engine.held == set()


async def test_status_tells_until_when(autojump_clock: MockClock, two: Setting) -> None:
    await two.use("a", 60)
    await two.use("b", -1)
    with two.residency.hold(entry("a")):
        held, forever = two.residency.describe()
        assert (held["requests"], held["until"]) == (1, None)
        assert (forever["requests"], forever["until"]) == (0, None)
    idle = two.residency.describe()[0]
    assert idle["requests"] == 0
    assert idle["until"] == pytest.approx(time.time() + 60, abs=5)
    assert idle["memory"] == {"weights": 60, "kv": 40}


async def test_the_least_recently_used_makes_room(autojump_clock: MockClock, two: Setting) -> None:
    await two.use("a")
    await pause(1)
    await two.use("b")
    await pause(1)
    await two.use("a")
    await two.use("c")
    assert two.engine.held == {"a", "c"}
    assert two.engine.told[-3:] == ["load c 0 f16", "unload b", "load c 0 f16"]


async def test_two_models_evict_each_other(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    setting = Setting(Engine(1))
    nursery.start_soon(setting.residency.run)
    for name in "abab":
        await setting.use(name, -1)
        assert setting.engine.held == {name}


async def test_one_that_is_used_makes_no_room(autojump_clock: MockClock, two: Setting) -> None:
    with two.residency.hold(entry("a")) as a, two.residency.hold(entry("b")):
        with pytest.raises(LuceError) as refusal:
            await two.use("c")
        assert two.engine.held == {"a", "b"}
        assert a.loaded is not None
    assert refusal.value.name == "busy"
    assert "requests use a, b" in refusal.value.message
    assert refusal.value.data == {"lack_bytes": 100, "models": {"a": 100, "b": 100}}
    assert (await two.use("c")).loaded is not None


async def test_nobody_leaves_for_one_that_can_never_fit(autojump_clock: MockClock, two: Setting) -> None:
    await two.use("a")
    two.engine.room = -5
    with pytest.raises(LuceError) as refusal:
        await two.use("b")
    assert refusal.value.name == "no_memory"
    assert refusal.value.data["models"] == {"a": 100}
    assert two.engine.held == {"a"}


async def test_unload(autojump_clock: MockClock, two: Setting) -> None:
    assert not await two.residency.unload("a", force=False)
    await two.use("a")
    assert await two.residency.unload("a", force=False)
    assert two.engine.held == set()
    with two.residency.hold(entry("a")):
        with pytest.raises(LuceError) as refusal:
            await two.residency.unload("a", force=False)
        assert (refusal.value.name, refusal.value.data) == ("busy", {"model": "a", "requests": 1})
        assert await two.residency.unload("a", force=True)
        await two.use("b")
    await pause(1)
    assert two.engine.held == {"b"}


async def test_who_waits_for_a_model_that_is_unloaded_gets_an_error(
    autojump_clock: MockClock, two: Setting, nursery: trio.Nursery
) -> None:
    errors: list[str] = []

    async def wait() -> None:
        with pytest.raises(LuceError) as failure:
            await two.use("slow")
        errors.append(failure.value.name)

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert await two.residency.unload("slow", force=True)
    await trio.testing.wait_all_tasks_blocked()
    assert errors == ["cancelled"]


async def test_what_is_said_of_one_that_leaves_is_not_of_its_successor(autojump_clock: MockClock, two: Setting) -> None:
    """The engine may be done with a load when it is told to drop it, and the model is wanted anew before it has."""
    residency, sent = two.residency, list[link.Message]()
    two.engine.send = sent.append  # type: ignore[method-assign, assignment]
    residency.want(entry("a"))
    residency._unload(residency.residents["a"])
    again = residency.want(entry("a"))
    loaded = link.Loaded("a", "llama", 64, 300, {}, 0.0)
    residency.receive(loaded)
    assert again.loaded is None
    residency.receive(link.Unloaded("a"))
    residency.receive(loaded)
    assert again.loaded == loaded
    assert [type(message) for message in sent] == [link.Load, link.Unload, link.Load]


async def test_a_restart_leaves_models_and_their_time_as_they_were(autojump_clock: MockClock, two: Setting) -> None:
    await two.use("a", 100)
    with two.residency.hold(entry("b"), 200, n_ctx=32, kv_type="q8_0"):
        await pause(40)
        two.engine.told.clear()
        two.engine.restart()
        assert two.engine.told == ["load b 32 q8_0", "load a 64 f16"]  # the one that is used first
    assert two.engine.held == {"a", "b"}
    await pause(61)
    assert two.engine.held == {"b"}
    await pause(140)
    assert two.engine.held == set()


async def test_other_settings_load_it_anew_unless_it_is_used(autojump_clock: MockClock, two: Setting) -> None:
    await two.use("a")
    with two.residency.hold(entry("a"), n_ctx=64, kv_type="f16") as resident:  # as it is
        assert two.engine.told == ["load a 0 f16"]
        with pytest.raises(LuceError) as refusal, two.residency.hold(entry("a"), n_ctx=128):
            pass
    assert refusal.value.name == "busy"
    with two.residency.hold(entry("a"), n_ctx=128) as other:
        assert other is not resident
    assert two.engine.told == ["load a 0 f16", "unload a", "load a 128 f16"]


async def test_a_model_that_nobody_waited_for_leaves_too(autojump_clock: MockClock, two: Setting) -> None:
    resident = two.residency.want(entry("slow"))
    await pause(1000)
    two.engine.load("slow")
    assert resident.loaded is not None
    assert resident.leaves_at < math.inf
    await pause(301)
    assert two.engine.held == set()
