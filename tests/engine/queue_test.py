"""Who waits, in which order; and requests that are paused."""

from __future__ import annotations

import pytest

from luced import link
from luced.engine import worker
from luced.engine.plan import GroupSpec
from luced.link import Finished
from tests.engine.fake import FakeModel
from tests.engine.scheduler_test import Bench, prompt, rows
from tests.engine.worker_test import Front, front, gated

__all__ = ["front"]


def started(bench: Bench) -> list[int]:
    """Requests in the order in which they start, until all have."""
    order: list[int] = []
    while bench.scheduler.requests:
        order += [request_id for request_id in rows(bench.step()) if request_id not in order]
    return order


def test_the_order_that_is_told_is_the_order_in_which_they_start() -> None:
    bench = Bench(FakeModel((GroupSpec("full", 400),), n_seqs=1))
    for i in range(8):
        bench.submit(prompt(10 + i, i), 2, client=i % 3 // 2)  # one client has twice as many as the other
    bench.submit(prompt(9, 30), 2, client=2, priority="batch")
    urgent = bench.submit(prompt(9, 31), 2, client=3)
    bench.step()
    waiting = bench.scheduler.waiting()
    assert len(waiting) == 9
    assert waiting.index(urgent.id) < 3
    assert waiting[-1] == 9
    assert started(bench) == [1, *waiting]


def test_five_hundred_wait_and_who_has_one_is_not_behind_them() -> None:
    bench = Bench(FakeModel((GroupSpec("full", 400),), n_seqs=4))
    greedy = [bench.submit(prompt(5, i), 2, client=1) for i in range(500)]
    for _ in range(5):
        bench.step()
    late = bench.submit(prompt(5, 999), 2, client=2)
    assert bench.scheduler.waiting().index(late.id) <= 1
    while not any(isinstance(m, Finished) and m.id == late.id for m in bench.messages):
        bench.step()
    assert sum(isinstance(m, Finished) for m in bench.messages) < 20
    bench.run()
    bench.check(late, *greedy)


def test_one_user_with_many_connections_is_one_user() -> None:
    bench = Bench(FakeModel((GroupSpec("full", 400),), n_seqs=4))
    greedy = [bench.submit(prompt(5, i), 20, client=i, tenant="a") for i in range(200)]
    for _ in range(5):
        bench.step()
    late = bench.submit(prompt(5, 999), 4, client=1000, tenant="b")
    assert late.id in bench.scheduler.waiting()[:2]
    bench.step()
    assert late.id in rows(bench.step())  # somebody of `a` had to make room
    had = {"a": 0, "b": 0}
    more = bench.submit(prompt(64, 7), 4, client=1001, tenant="b")
    while not any(isinstance(m, Finished) and m.id == more.id for m in bench.messages):
        for chunk in bench.step().chunks:
            had[chunk.sequence.tenant] += len(chunk.tokens)
    assert had["b"] >= 68
    assert had["a"] < 3 * had["b"]
    bench.run()
    bench.check(late, more, *greedy)


def test_a_paused_request_gets_no_rows_and_goes_on_where_it_stood() -> None:
    bench = Bench(FakeModel())
    one, other = bench.submit(prompt(20), 10), bench.submit(prompt(8, 5), 30, client=2)
    for _ in range(4):
        bench.step()
    n_said = len(bench.tokens(one))
    bench.scheduler.pause(one.id, 100.0)
    for _ in range(5):
        assert one.id not in rows(bench.step())
    assert len(bench.tokens(one)) == n_said
    bench.scheduler.resume(one.id)
    assert one.id in rows(bench.step())
    bench.run()
    bench.check(one, other)
    assert bench.scheduler.n_preempted == 0


def test_a_paused_request_alone_is_no_work() -> None:
    bench = Bench(FakeModel())
    one = bench.submit(prompt(20), 10)
    bench.step()
    bench.scheduler.pause(one.id, 100.0)
    assert bench.scheduler.plan(bench.now) is None
    assert not bench.scheduler.has_work
    bench.scheduler.resume(one.id)
    bench.run()
    bench.check(one)


def test_its_pages_go_after_a_while() -> None:
    bench = Bench(FakeModel())
    one = bench.submit(prompt(20), 10)
    for _ in range(3):
        bench.step()
    pool = bench.scheduler.cache.pools[0]
    n_held = pool.n_pages - pool.n_available
    assert n_held > 0
    bench.scheduler.pause(one.id, 50.0)
    assert bench.scheduler.expire(49.0) == 50.0
    assert pool.n_pages - pool.n_available == n_held
    assert bench.scheduler.expire(50.0) is None
    assert pool.n_pages == pool.n_available
    bench.scheduler.resume(one.id)
    bench.run()
    bench.check(one)


def test_its_pages_go_at_once_where_others_need_them() -> None:
    bench = Bench(FakeModel((GroupSpec("full", 13),)))
    one = bench.submit(prompt(30), 10)
    for _ in range(4):
        bench.step()
    bench.scheduler.pause(one.id, 1e9)
    batch = bench.submit(prompt(40, 9), 5, priority="batch", client=2)
    while not any(isinstance(m, Finished) and m.id == batch.id for m in bench.messages):
        assert batch.id in rows(bench.step())
    assert bench.scheduler.n_preempted == 1
    bench.scheduler.resume(one.id)
    bench.run()
    bench.check(one, batch)


def test_the_worker_pauses_and_sleeps(front: Front) -> None:
    gate = gated(front, 2)
    front.say(link.Generate(1, "m", prompt(8), link.Sampling(), [], 100))
    front.hear_until(link.Tokens)
    front.say(link.Pause(1, 0.0), link.AskState(7))
    gate.release()
    state = front.hear_until(link.State)[-1]
    assert isinstance(state, link.State)
    (model,) = state.state["models"]
    assert model["requests"][0]["phase"] == "paused"
    gate.release(1000)
    front.say(link.AskState(8))
    state = front.hear()  # and nothing of the request
    assert isinstance(state, link.State)
    pages = state.state["models"][0]["pages"]["full"]
    assert pages["free"] + pages["cached"] == pages["total"]
    front.say(link.Resume(1))
    messages = front.hear_until(link.Finished)
    assert len([m for m in messages if isinstance(m, link.Tokens)]) > 90


def test_the_worker_tells_the_queue(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "QUEUE_REPORT_S", 0.0)
    gate = gated(front, 0)
    requests = [link.Generate(i, "m", prompt(8, i), link.Sampling(), [], 20) for i in range(1, 9)]
    front.say(requests[0])
    assert gate.reached.wait(60)
    front.say(*requests[1:])  # they are heard together, after the first step
    gate.release(1000)
    told = [m.ids for m in front.hear_until(link.Queued) if isinstance(m, link.Queued)]
    while told[-1]:
        told += [m.ids for m in front.hear_until(link.Queued) if isinstance(m, link.Queued)]
    assert told[0] == sorted(told[0])
    lengths = [len(ids) for ids in told]
    assert lengths == sorted(lengths, reverse=True)
    assert len(told) > 4
