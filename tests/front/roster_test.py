"""Who gets to the next engine when one has died, in which order, and who is blamed. No engine, no clock."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from luce.errors import LuceError
from luced import link
from luced.front.death import Death
from luced.front.request import MAX_AHEAD, EngineRequest, Wait
from luced.front.roster import Roster

KILLED, FAULT = Death(-9, was_ready=True), Death(-11, was_ready=True)
TIMINGS = {"queue_s": 1.0, "prefill_s": 2.0, "decode_s": 3.0}


class Bench:
    """A roster, what it told the engine, and an engine that says what the test says."""

    def __init__(self, stack: ExitStack) -> None:
        self.told: list[link.Message] = []
        self.models = {"m": "loaded"}
        self.roster = Roster(
            self.told.append, lambda name: self.models[name], lambda: "loading" in self.models.values(), pause_s=5
        )
        self._stack = stack

    def ask(self, model: str = "m", **fields: Any) -> EngineRequest:
        generate = link.Generate(0, model, [1, 2, 3], link.Sampling(seed=7), [99], **{"max_tokens": 9, **fields})
        return self._stack.enter_context(self.roster.request(generate))

    def take(self) -> list[link.Message]:
        """What the engine was told since the last time."""
        told, self.told[:] = list(self.told), []
        return told

    def given(self) -> list[tuple[int, list[list[int] | None]]]:
        """The requests that the engine was given since then, by number, and what they have said."""
        return [(m.id, list(m.said)) for m in self.take() if isinstance(m, link.Generate)]

    def say(self, request: EngineRequest, *tokens: int, choice: int = 0) -> None:
        self.roster.deliver(link.Tokens(request.id, choice, list(tokens)))

    def read(self, request: EngineRequest, n_done: int) -> None:
        self.roster.deliver(link.Progress(request.id, n_done, 3, 1))

    def finish(self, request: EngineRequest, choice: int = 0) -> None:
        usage = {"n_prompt": 3, "n_cached": 0, "n_generated": 2}
        self.roster.deliver(link.Finished(request.id, choice, "length", usage, TIMINGS))

    def die(self, death: Death) -> EngineRequest | None:
        """The engine dies and another one is there."""
        blamed = self.roster.lose(death, 1)
        self.take()
        self.roster.dispatch()
        return blamed


@pytest.fixture
async def bench() -> Any:
    with ExitStack() as stack:
        yield Bench(stack)


async def heard(request: EngineRequest) -> list[link.Message | Wait]:
    """All that has come."""
    messages: list[link.Message | Wait] = []

    async def hear() -> None:
        while True:
            messages.append(await request.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return messages


async def test_the_next_engine_is_told_what_each_choice_has_said(bench: Bench) -> None:
    first, second, third = bench.ask(n=3), bench.ask(), bench.ask()
    assert bench.given() == [(1, []), (2, []), (3, [])]
    bench.say(second, 5, 6)
    bench.say(first, 7, choice=2)
    bench.say(first, 8, choice=1)
    bench.finish(first, choice=1)
    bench.finish(third)
    bench.die(KILLED)
    assert bench.given() == [(4, [[], None, [7]]), (5, [[5, 6]])]  # in the order in which they came
    bench.roster.deliver(link.Tokens(2, 0, [1]))  # of the dead one
    bench.say(second, 6)
    bench.die(KILLED)
    assert bench.given() == [(6, [[], None, [7]]), (7, [[5, 6, 6]])]


@pytest.mark.parametrize(("tokens", "reason"), [((4, 99), "stop"), ((4,) * 9, "length"), ((99,) * 9, "stop")])
async def test_an_end_that_the_engine_did_not_live_to_tell(bench: Bench, tokens: tuple[int, ...], reason: str) -> None:
    request = bench.ask()
    bench.read(request, 3)
    bench.say(request, *tokens)
    bench.die(KILLED)
    assert bench.given() == []
    end = [m for m in await heard(request) if isinstance(m, link.Finished)]
    assert [(m.choice, m.reason, m.usage["n_generated"], m.usage["n_prompt"]) for m in end] == [
        (0, reason, len(tokens), 3)
    ]
    assert end[0].timings.keys() == {"queue_s", "prefill_s", "decode_s", "restart_s"}


async def test_a_request_that_only_fills_the_cache_does_it_again(bench: Bench) -> None:
    request = bench.ask(max_tokens=0)
    bench.take()
    bench.die(KILLED)
    assert bench.given() == [(2, [])]
    assert request.n_open == 1


async def test_a_choice_that_was_cut_is_over(bench: Bench) -> None:
    request = bench.ask(n=2)
    bench.say(request, 4, 5, 6)
    bench.say(request, 4)
    bench.say(request, 4, choice=1)
    request.truncate(0, 2)
    bench.die(KILLED)
    assert bench.given() == [(2, [None, [4]])]
    bench.roster.lose(KILLED, 2)
    request.truncate(1, 1)  # no engine is there
    bench.take()
    bench.roster.dispatch()
    ends = [m for m in await heard(request) if isinstance(m, link.Finished)]
    assert [(m.choice, m.reason, m.usage["n_generated"]) for m in ends] == [(0, "truncated", 2), (1, "truncated", 1)]
    assert bench.given() == []


async def test_a_model_that_is_not_there_yet_is_waited_for(bench: Bench) -> None:
    bench.models["b"] = "loading"
    one, two = bench.ask("b"), bench.ask()
    assert bench.given() == [(1, [])]
    assert (one.id, two.id) == (0, 1)
    bench.models["b"] = "loaded"
    bench.roster.dispatch()
    assert bench.given() == [(2, [])]
    bench.models["b"] = "here"
    bench.die(KILLED)
    bench.roster.end("b", LuceError("no_memory", "there is none"))
    failed = [m for m in await heard(one) if isinstance(m, link.Failed)]
    assert [m.error["name"] for m in failed] == ["no_memory"]
    assert not [m for m in await heard(two) if isinstance(m, link.Failed)]


async def test_a_slow_reader_stays_paused(bench: Bench) -> None:
    request = bench.ask(max_tokens=1000)
    bench.say(request, *[1] * MAX_AHEAD)
    assert isinstance(bench.take()[-1], link.Pause)
    bench.die(KILLED)
    assert [type(m) for m in bench.take()] == [link.Generate, link.Pause]
    bench.roster.lose(KILLED, 2)
    await request.receive()
    assert not request.is_paused
    bench.take()
    bench.roster.dispatch()
    assert [type(m) for m in bench.take()] == [link.Generate]


async def test_who_does_not_get_on_in_two_faults_runs_alone(bench: Bench) -> None:
    poison, quick, slow = bench.ask(), bench.ask(), bench.ask()
    bench.die(FAULT)
    bench.say(quick, 1)
    assert bench.die(FAULT) is None
    bench.take()
    late = bench.ask()
    assert bench.given() == []  # who comes now waits too
    assert (poison.id, quick.id, slow.id, late.id) == (7, 0, 0, 0)
    assert bench.die(FAULT) is poison
    assert [number for number, _ in bench.given()] == [8]
    assert slow.id == 8
    bench.say(slow, 1)
    assert [number for number, _ in bench.given()] == [9, 10]
    assert (quick.id, slow.id, late.id) == (9, 8, 10)  # the last suspect goes on beside the others


async def test_a_suspect_that_gets_on_makes_way_for_the_next(bench: Bench) -> None:
    first, second = bench.ask(), bench.ask()
    bench.say(first, 1)
    bench.die(FAULT)
    bench.die(FAULT)
    assert (first.id, second.id) == (5, 0)
    bench.take()
    bench.say(first, 2)
    assert [type(m) for m in bench.take()] == [link.Abandon, link.Generate]
    assert (first.id, second.id) == (0, 6)
    bench.read(second, 2)  # of its prompt
    assert (first.id, second.id) == (7, 6)
    assert bench.given() == [(7, [[1, 2]])]
    assert bench.die(FAULT) is None  # a fault of both is one for each
    assert len(bench.given()) == 2


async def test_who_came_to_an_engine_after_others_is_not_blamed_for_them(bench: Bench) -> None:
    """It may not have heard yet that they are gone, nor of the one that is there instead."""
    first, second = bench.ask(), bench.ask()
    bench.die(FAULT)
    bench.die(FAULT)
    bench.say(first, 1)
    assert second.id == 6
    assert bench.die(FAULT) is None
    assert (first.id, second.id) == (0, 7)
    assert bench.die(FAULT) is second
    assert first.id == 8


@pytest.mark.parametrize("how", ["fails", "leaves"])
async def test_a_suspect_that_ends_lets_the_next_one_go(how: str) -> None:
    with ExitStack() as stack:
        bench = Bench(stack)
        with ExitStack() as first:
            bench._stack = first
            bench.ask()
            bench._stack = stack
            second = bench.ask()
            bench.die(FAULT)
            bench.die(FAULT)
            assert second.id == 0
            if how == "fails":
                bench.roster.deliver(link.Failed(5, LuceError("busy", "").to_wire()))
                assert second.id == 6
        assert second.id == 6


async def test_kills_are_nobodys_fault(bench: Bench) -> None:
    one, two = bench.ask(), bench.ask()
    for _ in range(9):
        assert bench.die(KILLED) is None
    assert len(bench.given()) == 2  # side by side
    bench.say(two, 1)
    bench.die(KILLED)
    (failed,) = [m for m in await heard(one) if isinstance(m, link.Failed)]
    assert (failed.error["name"], "10 times in a row" in failed.error["message"]) == ("engine_failed", True)
    assert bench.given() == [(21, [[1]])]


async def test_while_models_load_nobody_can_be_blamed(bench: Bench) -> None:
    request = bench.ask()
    bench.die(FAULT)
    bench.models["b"] = "loading"
    assert bench.die(FAULT) is None
    assert bench.given() == []  # first the load has to show that it is not the one
    bench.models["b"] = "loaded"
    bench.roster.dispatch()
    assert request.id
    assert bench.die(FAULT) is request


async def test_time_is_added_up_and_the_cache_of_the_first_engine_counts(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    request = bench.ask()
    await trio.sleep(1)
    bench.read(request, 3)
    await trio.sleep(2)
    bench.say(request, 4)
    await trio.sleep(4)
    bench.roster.lose(KILLED, 1)
    await trio.sleep(8)
    bench.roster.dispatch()
    bench.roster.deliver(link.Progress(request.id, 4, 4, 0))
    bench.say(request, 5)
    bench.finish(request)
    end = (await heard(request))[-1]
    assert isinstance(end, link.Finished)
    assert end.timings == {"queue_s": 2.0, "prefill_s": 4.0, "decode_s": 7.0, "restart_s": 8.0}
    assert end.usage["n_cached"] == 1


def test_what_a_death_is() -> None:
    assert [Death(status, True).is_fault for status in (1, 0, -11, -6, -7, -9, -15, -2)] == [True] * 5 + [False] * 3
    assert replace(KILLED, status=None, last_lines=("No such file",)).cause == "cannot be started: No such file"
