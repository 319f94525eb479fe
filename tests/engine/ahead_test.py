"""Steps that are launched before the last one is read: clients get what they would have got, one step is for nobody
where a row has ended unforeseen, and nothing of it stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from luced import link
from luced.engine.offline import resident
from luced.engine.plan import UNKNOWN, Emitted, GroupSpec, Plan
from luced.engine.runner import Runner
from luced.engine.scheduler import Scheduler
from luced.engine.steps import Steps
from luced.link import Finished, Generate, Sampling
from tests.device.fake_cuda import FakeRuntime, install
from tests.engine.company_test import Said, heard, run, tokens
from tests.engine.fake import FakeModel, alone
from tests.engine.scheduler_test import Bench, prompt, rows
from tests.engine.worker_test import Front, front, gated, generate
from tests.engine.worker_test import tokens as said
from tests.models.cases import GOLDENS

__all__ = ["front"]


class Ahead(Bench):
    """A bench whose model runs ahead."""

    def __init__(self, n_pages: int = 64) -> None:
        super().__init__(FakeModel((GroupSpec("full", n_pages),), runs_ahead=True))
        self.steps = Steps(self.model, self.scheduler)

    def step(self) -> Plan:
        """The step that is committed."""
        n_before = len(self.model.plans)
        plan = self.model.under_way if self.steps.is_under_way else None
        self.now += 1
        messages = self.steps.next(lambda: self.now)
        assert messages is not None
        self.messages += messages
        return plan or self.model.plans[n_before]

    def run(self) -> None:
        while self.scheduler.requests or self.steps.is_under_way:
            self.step()

    @property
    def n_held(self) -> int:
        pool = self.scheduler.cache.pools[0]
        return pool.n_pages - pool.n_available


def is_ahead(plan: Plan) -> bool:
    return plan.chunks[0].tokens == [UNKNOWN]


def test_all_but_the_first_step_of_an_answer_are_ahead() -> None:
    bench = Ahead()
    one, other = bench.submit(prompt(9), 20), bench.submit(prompt(6, 1), 20)
    bench.run()
    bench.check(one, other)
    assert [is_ahead(plan) for plan in bench.model.plans] == [False] + [True] * 19


def test_a_step_too_many_leaves_nothing() -> None:
    """A row that ends at a stop id: the device knows it first."""
    expected = alone((GroupSpec("full", 64),), Generate(0, "m", prompt(9), Sampling(), [], 30), 0)[0]
    n = next(i for i in range(3, 30) if expected[i] not in expected[:i]) + 1
    bench = Ahead()
    one = bench.submit(prompt(9), 30, stop_ids=[expected[n - 1]])
    other = bench.submit(prompt(7, 5), 30)
    while not any(isinstance(m, Finished) for m in bench.messages):
        bench.step()
    assert len(bench.tokens(one)) == n
    assert {chunk.sequence.request.id for chunk in bench.model.under_way.chunks} == {one.id, other.id}
    bench.run()
    bench.check(one, other)
    again = bench.submit([*prompt(9), *expected[:n], 3], 5)
    bench.run()
    bench.check(again)
    assert bench.finished(again).usage["n_cached"] == 9 + n - 1  # not what the step too many has read


def test_who_is_cancelled_keeps_his_pages_until_his_row_has_run() -> None:
    bench = Ahead()
    one = bench.submit(prompt(10), 30)
    bench.step()
    assert bench.steps.is_under_way
    bench.scheduler.abandon(one.id)
    n_held, n_said = bench.n_held, len(bench.messages)
    assert n_held > 0
    assert bench.steps.next(lambda: 0) == []
    assert bench.n_held == 0
    assert bench.steps.next(lambda: 0) is None
    assert len(bench.messages) == n_said


@pytest.mark.parametrize("n_tokens", [0, 2, 4, 5])
def test_truncated_while_a_step_is_under_way(n_tokens: int) -> None:
    bench = Ahead()
    one, other = bench.submit(prompt(9), 30), bench.submit(prompt(9, 3), 30)
    for _ in range(5):
        bench.step()
    bench.messages += bench.scheduler.truncate(one.id, 0, n_tokens, bench.now)
    bench.run()
    finished = bench.finished(one)
    assert (finished.reason, finished.usage["n_generated"]) == ("truncated", n_tokens)
    assert len(bench.tokens(one)) == 5
    again = bench.submit([*prompt(9), *bench.tokens(one)[:n_tokens], 3, 4], 5)
    bench.run()
    bench.check(other, again)


def test_who_comes_is_in_the_step_after_the_next() -> None:
    bench = Ahead()
    one = bench.submit(prompt(9), 30)
    for _ in range(5):
        bench.step()
    late = bench.submit(prompt(5, 7), 5)
    assert late.id not in rows(bench.step())  # it was under way
    assert late.id in rows(bench.step())
    bench.run()
    bench.check(one, late)


def test_who_is_paused_has_one_more_token() -> None:
    bench = Ahead()
    one = bench.submit(prompt(9), 30)
    for _ in range(5):
        bench.step()
    bench.scheduler.pause(one.id, 50)
    assert bench.scheduler.expire(60) is not None  # not while its row is under way
    bench.step()
    assert len(bench.tokens(one)) == 6
    assert bench.steps.next(lambda: 0) is None
    assert bench.n_held > 0
    assert bench.scheduler.expire(60) is None
    assert bench.n_held == 0
    bench.scheduler.resume(one.id)
    bench.run()
    bench.check(one)


def test_where_pages_lack_it_waits() -> None:
    bench = Ahead(n_pages=14)
    generates = [bench.submit(prompt(6, i), 40) for i in range(4)]
    bench.run()
    bench.check(*generates)
    assert bench.scheduler.n_preempted > 0
    assert 20 < sum(map(is_ahead, bench.model.plans)) < len(bench.model.plans) - 20


@pytest.mark.parametrize("sampling", [Sampling(repetition_penalty=1.1), Sampling(presence_penalty=0.1)])
def test_what_needs_the_host_in_between(sampling: Sampling) -> None:
    bench = Ahead()
    generate = Generate(1, "m", prompt(9), sampling, [], 10)
    bench.scheduler.submit(generate, 0)
    bench.run()
    assert not any(map(is_ahead, bench.model.plans))


# ---- the worker ----


def test_the_worker_ends_a_step_that_is_for_nobody(front: Front) -> None:
    """The answer ends at a stop id, nothing else is to be done, and no message comes."""
    asked = generate(max_tokens=9, n_prompt=7)
    expected = alone((GroupSpec("full", 64),), asked, 0)[0]
    front.runs_ahead = True
    front.load()
    model, is_idle = front.models["m"], threading.Event()
    read = model.read

    def read_and_tell() -> list[Emitted]:
        emitted = read()
        if not model.is_busy:
            is_idle.set()
        return emitted

    model.read = read_and_tell  # type: ignore[method-assign]
    front.say(replace(asked, stop_ids=[expected[3]]))
    front.hear_until(link.Finished)
    assert is_idle.wait(60)
    front.say(link.AskState(7))
    state = front.hear()
    assert isinstance(state, link.State)
    pages = state.state["models"][0]["pages"]["full"]
    assert pages["free"] + pages["cached"] == pages["total"]


def test_the_worker_hears_what_comes_while_a_step_is_under_way(front: Front) -> None:
    front.runs_ahead = True
    gate = gated(front, 4)
    asked = [replace(generate(i, max_tokens=40, n_prompt=7), client=i) for i in range(1, 5)]
    front.say(*asked[:3])
    front.hear_until(link.Tokens)
    front.say(link.Abandon(1), link.Truncate(2, 0, 1), asked[3])
    gate.release(1000)
    messages = front.hear_until(link.Finished)
    while sum(isinstance(m, link.Finished) for m in messages) < 3:
        messages += front.hear_until(link.Finished)
    ends = {m.id: m.reason for m in messages if isinstance(m, link.Finished)}
    assert ends == {2: "truncated", 3: "length", 4: "length"}
    groups = front.models["m"].groups
    assert said(messages, 4) == alone(groups, asked[3], 0)[0]
    assert said(messages, 3) == alone(groups, asked[2], 0)[0][-len(said(messages, 3)) :]  # the first was heard above
    front.say(link.Unload("m"))
    front.hear_until(link.Unloaded)


# ---- real models ----


@pytest.fixture(scope="module", params=["llama", "gemma3", "cuda"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """`cuda`: whose kernels are the CPU's and run as late as they can (fake_cuda.py)."""
    with pytest.MonkeyPatch.context() as patch:
        on_cuda = request.param == "cuda"
        if on_cuda:
            install(patch, FakeRuntime(), tmp_path_factory.mktemp("root"))
        name = "llama" if on_cuda else request.param
        with resident(GOLDENS / f"{name}.gguf", device="cuda" if on_cuda else "cpu", n_threads=2) as runner:
            runner.groups = tuple(replace(group, n_pages=min(group.n_pages, 24)) for group in runner.groups)
            yield runner


def asked(runner: Runner, temperature: float, unstopped: Said | None = None) -> list[Generate]:
    """Twelve requests; with what they said without stop ids: each ends at one of its own tokens, which is met late."""

    def request(i: int) -> Generate:
        sampling = Sampling(temperature=temperature, seed=i, n_logprobs=i % 3)
        tokens = [(7 * j * j + i) % runner.n_vocab for j in range(20 + 5 * i)]
        g = Generate(i, "m", tokens, sampling, [], 20 + i, n=1 + i % 2, client=i % 3)
        return replace(g, stop_ids=[unstopped[i, 0][5 + i]]) if unstopped and i % 4 else g

    return [request(i) for i in range(12)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_answers_as_without(runner: Runner, temperature: float) -> None:
    """Some cancelled on the way, and asked again, until all have been answered from a warm cache too."""
    runner.runs_ahead = False
    generates = asked(runner, temperature, tokens(run(Scheduler(runner), runner, asked(runner, temperature))))
    expected = heard(run(Scheduler(runner), runner, generates))
    runner.runs_ahead = True
    scheduler = Scheduler(runner)
    assert heard(run(scheduler, runner, generates)) == expected
    random = np.random.default_rng(int(temperature))
    steps = Steps(runner, scheduler)
    n_ahead = 0
    for _ in range(3):
        for one in generates:
            scheduler.submit(one, 0)
        while scheduler.requests:
            steps.next(lambda: 0)
            n_ahead += steps.is_under_way
            if scheduler.requests and random.random() < 0.2:
                scheduler.abandon(int(random.choice(list(scheduler.requests))))
        while steps.is_under_way:
            steps.next(lambda: 0)
        assert heard(run(scheduler, runner, generates)) == expected
    assert n_ahead > 20
    assert all(pool.n_available == pool.n_pages for pool in scheduler.cache.pools)
