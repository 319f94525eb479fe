"""What the scheduler promises, one promise at a time; models and clocks are made up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from luced.engine.plan import BROKEN, Emitted, GroupSpec, Plan
from luced.engine.scheduler import CHUNK, Scheduler
from luced.errors import RequestError
from luced.link import Failed, Finished, Generate, Message, Progress, Sampling, Tokens
from tests.engine.fake import FakeModel, alone


class Bench:
    """A scheduler over a model, and what it has said."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.scheduler = Scheduler(model)
        self.now = 0.0
        self.messages: list[Message] = []
        self.submitted: dict[int, Generate] = {}

    def submit(self, prompt: Iterable[int], max_tokens: int = 4, **fields: Any) -> Generate:
        request_id = len(self.submitted) + 1
        sampling = Sampling(n_logprobs=fields.pop("n_logprobs", -1))
        generate = Generate(request_id, "m", list(prompt), sampling, fields.pop("stop_ids", []), max_tokens, **fields)
        self.scheduler.submit(generate, self.now)
        self.submitted[request_id] = generate
        return generate

    def step(self) -> Plan:
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        self.now += 1
        self.messages += self.scheduler.commit(plan, self.model.step(plan), self.now)
        return plan

    def run(self) -> None:
        while self.scheduler.requests:
            self.step()

    def tokens(self, generate: Generate, choice: int = 0) -> list[int]:
        said = [m for m in self.messages if isinstance(m, Tokens) and (m.id, m.choice) == (generate.id, choice)]
        return [token for message in said for token in message.tokens]

    def finished(self, generate: Generate, choice: int = 0) -> Finished:
        (found,) = [m for m in self.messages if isinstance(m, Finished) and (m.id, m.choice) == (generate.id, choice)]
        return found

    def check(self, *generates: Generate) -> None:
        for generate in generates:
            for choice in range(generate.n):
                assert self.tokens(generate, choice) == alone(self.model.groups, generate, choice)[0]


def rows(plan: Plan) -> dict[int, int]:
    return {chunk.sequence.request.id: len(chunk.tokens) for chunk in plan.chunks}


def prompt(n: int, first: int = 0) -> list[int]:
    return [(first + 7 * i * i) % 50 for i in range(n)]


@pytest.fixture
def big() -> Bench:
    return Bench(FakeModel((GroupSpec("full", 1000),), page_size=16, n_batch=512, n_seqs=8))


def test_a_prompt_goes_on_beside_those_that_decode(big: Bench) -> None:
    first, long = big.submit(prompt(10), 20), big.submit(prompt(2000, 1), 4)
    assert rows(big.step()) == {1: 10, 2: 448}  # 502 rows, cut at a multiple of 64
    while not big.tokens(long):
        plan = big.step()
        if 1 in rows(plan):
            assert rows(plan)[1] == 1
            assert rows(plan).get(2, 0) <= 128  # a quarter of the batch
            assert plan.chunks[0].sequence.request.id == 1  # those that decode come first
    big.run()
    big.check(first, long)


def test_chunks_end_at_absolute_multiples(big: Bench) -> None:
    warm = big.submit(prompt(100), 0)
    big.run()
    long = big.submit([*prompt(100)[:90], *prompt(1000, 3)], 1)
    ends = []
    while big.scheduler.requests:
        (chunk,) = big.step().chunks
        ends.append(chunk.position + len(chunk.tokens))
    assert ends[-1] == 1090
    assert all(end % CHUNK == 0 for end in ends[:-1])
    assert big.finished(long).usage["n_cached"] == 90  # not at a page boundary
    assert big.finished(warm).reason == "length"
    big.check(warm, long)


def test_classes_in_order(big: Bench) -> None:
    for priority in ("batch", "agent", "interactive"):
        big.submit(prompt(600, len(big.submitted)), 1, priority=priority)
    order = []
    while big.scheduler.requests:
        order += [i for i in rows(big.step()) if i not in order]
    assert order == [3, 2, 1]


def test_clients_share_rows_whatever_they_ask_for() -> None:
    bench = Bench(FakeModel((GroupSpec("full", 1000),), page_size=16, n_batch=64, n_seqs=8))
    for i in range(6):
        bench.submit(prompt(640, i), 0, client=1)
    for _ in range(8):  # what a client had before the other came does not count
        bench.step()
    bench.submit(prompt(640, 40), 0, client=2)
    had = {1: 0, 2: 0}
    while not any(isinstance(m, Finished) and m.id == 7 for m in bench.messages):
        for chunk in bench.step().chunks:
            had[chunk.sequence.client] += len(chunk.tokens)
    assert had[2] == 640
    assert abs(had[1] - had[2]) <= 64


def test_who_has_begun_goes_on_before_choices_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luced.engine.scheduler.CHUNK", 4)
    bench = Bench(FakeModel((GroupSpec("full", 24),), n_seqs=3))
    choices, other = bench.submit(prompt(8), 20, n=3), bench.submit(prompt(60, 3), 4)
    assert rows(bench.step()) == {1: 8, 2: 8}
    while not bench.tokens(other):
        assert other.id in rows(bench.step())  # although the choices rank before it, and there are no pages for them
    bench.run()
    bench.check(choices, other)


def test_a_client_with_nothing_running_gets_a_slot() -> None:
    bench = Bench(FakeModel(n_seqs=4))
    greedy = [bench.submit(prompt(5, i), 30, client=1) for i in range(6)]
    for _ in range(4):
        bench.step()
    late = bench.submit(prompt(5, 40), 3, client=2)
    for _ in range(3):
        bench.step()
    assert bench.finished(late).reason == "length"
    bench.run()
    bench.check(late, *greedy)


def test_a_better_class_takes_slot_and_pages() -> None:
    bench = Bench(FakeModel((GroupSpec("full", 13),), n_seqs=2))
    batch = [bench.submit(prompt(12, i), 20, priority="batch") for i in range(2)]
    for _ in range(3):
        bench.step()
    urgent = bench.submit(prompt(30, 9), 4)
    assert urgent.id in rows(bench.step())
    bench.run()
    assert bench.scheduler.n_preempted > 0
    bench.check(urgent, *batch)
    ends = [m.id for m in bench.messages if isinstance(m, Finished)]
    assert ends[0] == urgent.id


def test_want_of_pages_loses_nothing() -> None:
    bench = Bench(FakeModel((GroupSpec("full", 14),), n_seqs=4))
    generates = [bench.submit(prompt(6, i), 40) for i in range(4)]
    bench.run()
    assert bench.scheduler.n_preempted > 0
    bench.check(*generates)


def test_choices_share_the_prompt(big: Bench) -> None:
    generate = big.submit(prompt(70), 5, n=3)
    first = big.step()
    assert rows(first) == {1: 70}
    assert [len(chunk.tokens) for chunk in big.step().chunks] == [1, 1, 1]
    big.run()
    big.check(generate)
    assert len({tuple(big.tokens(generate, choice)) for choice in range(3)}) == 3
    assert [big.finished(generate, choice).usage["n_cached"] for choice in range(3)] == [0, 69, 69]


def test_warm_is_as_cold(big: Bench) -> None:
    cold = big.submit(prompt(100), 6)
    big.run()
    warm = big.submit(prompt(100), 6)
    assert rows(big.step()) == {2: 1}
    big.run()
    assert big.tokens(warm) == big.tokens(cold)
    assert big.finished(warm).usage["n_cached"] == 99
    again = big.submit([*prompt(100), *big.tokens(cold), 1, 2], 3)  # the next turn of a conversation
    big.run()
    assert big.finished(again).usage["n_cached"] == 105  # the last token's cell was never computed
    big.check(cold, warm, again)


def test_tenants_share_nothing(big: Bench) -> None:
    big.submit(prompt(100), 2, tenant="a")
    big.run()
    other = big.submit(prompt(100), 2, tenant="b")
    big.run()
    assert big.finished(other).usage["n_cached"] == 0


def test_a_window_continues_where_its_pages_are() -> None:
    groups = (GroupSpec("full", 200), GroupSpec("swa", 9, 8))
    bench = Bench(FakeModel(groups, page_size=4, n_batch=16))
    first = bench.submit(prompt(80), 4)
    bench.run()
    again = bench.submit(prompt(80), 4)  # its window is still there
    bench.run()
    assert bench.finished(again).usage["n_cached"] == 79
    middle = bench.submit([*prompt(80)[:40], 1, 2, 3], 4)  # that one's is not
    bench.run()
    assert bench.finished(middle).usage["n_cached"] == 0
    bench.check(first, again, middle)


def test_max_tokens_0_fills_the_cache(big: Bench) -> None:
    generate = big.submit(prompt(30), 0)
    big.run()
    assert big.tokens(generate) == []
    finished = big.finished(generate)
    assert (finished.reason, finished.usage["n_generated"]) == ("length", 0)
    big.submit(prompt(30), 1)
    big.step()
    assert big.finished(big.submitted[2]).usage["n_cached"] == 29


def test_a_stop_id_is_said_and_ends_it(big: Bench) -> None:
    tokens, _ = alone(big.model.groups, Generate(0, "m", prompt(9), Sampling(), [], 9), 0)
    generate = big.submit(prompt(9), 9, stop_ids=[tokens[3]], n_logprobs=1)
    big.run()
    n = tokens.index(tokens[3]) + 1
    assert big.tokens(generate) == tokens[:n]
    assert big.finished(generate).reason == "stop"
    assert all(m.logprobs == [[-1.0, [[m.tokens[0], -1.0]]]] for m in big.messages if isinstance(m, Tokens))


def test_truncated(big: Bench) -> None:
    generate = big.submit(prompt(20), 50)
    for _ in range(5):
        big.step()
    big.messages += big.scheduler.truncate(generate.id, 0, 2, big.now)
    finished = big.finished(generate)
    assert (finished.reason, finished.usage["n_generated"]) == ("truncated", 2)
    assert big.scheduler.truncate(generate.id, 0, 1, big.now) == []  # it has ended
    assert big.scheduler.plan(big.now) is None


def test_abandoned_ones_are_not_heard_of_again(big: Bench) -> None:
    big.submit(prompt(20), 50, n=2)
    big.submit(prompt(20, 3), 50)
    big.step()
    big.step()
    n_said = len(big.messages)
    big.scheduler.abandon(1)
    big.scheduler.abandon(2)
    big.scheduler.abandon(3)  # never was
    assert big.scheduler.plan(big.now) is None
    assert len(big.messages) == n_said
    assert not any(pool.n_free + pool.n_idle < pool.n_pages for pool in big.scheduler.cache.pools)


def test_timings_are_of_the_clock_that_was_given() -> None:
    bench = Bench(FakeModel(n_seqs=1))
    first, second = bench.submit(prompt(20), 3), bench.submit(prompt(20, 5), 2)
    bench.run()
    assert bench.finished(first).timings == {"queue_s": 0, "prefill_s": 2, "decode_s": 2}
    assert bench.finished(second).timings == {"queue_s": 4, "prefill_s": 2, "decode_s": 1}
    said = [(m.n_done, m.n_total) for m in bench.messages if isinstance(m, Progress) and m.id == 1]
    assert said == [(16, 20), (20, 20)]


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "code", "words"),
    [
        ([], 1, "bad_parameter", "empty"),
        ([1, 50], 1, "bad_parameter", "token 50"),
        ([-1, 1], 1, "bad_parameter", "token -1"),
        ([1] * 250, 3, "context_too_long", "250 prompt tokens and 3"),
    ],
)
def test_what_can_never_run_is_refused(tokens: list[int], max_tokens: int, code: str, words: str) -> None:
    bench = Bench(FakeModel())  # 64 pages of 4, one of which is kept for copies
    with pytest.raises(RequestError, match=words) as refused:
        bench.submit(tokens, max_tokens)
    assert refused.value.name == code
    assert bench.scheduler.plan(0) is None


def test_the_longest_that_is_accepted_runs() -> None:
    bench = Bench(FakeModel())
    generate = bench.submit(prompt(240), 12)
    bench.run()
    bench.check(generate)


def test_state() -> None:
    bench = Bench(FakeModel(n_seqs=1))
    bench.submit(prompt(20), 3, client=5)
    bench.submit(prompt(20, 2), 3)
    bench.step()
    state = bench.scheduler.state(bench.now)
    assert [(r["id"], r["client"], r["phase"], r["n_done"]) for r in state["requests"]] == [
        (1, 5, "prefill", 16),
        (2, 0, "queue", 0),
    ]
    assert state["pages"] == {"full": {"total": 64, "free": 60, "cached": 0}}
    bench.run()
    assert bench.scheduler.state(bench.now)["pages"]["full"]["cached"] == 12


def test_a_request_without_logits_fails_alone(big: Bench) -> None:
    broken, sound = big.submit(prompt(10), 20, n=2), big.submit(prompt(10, 1), 20, client=1)
    big.step()
    step = big.model.step

    def damaged(plan: Plan) -> list[Emitted]:
        drawn = [chunk.sequence for chunk in plan.chunks if chunk.n_out]
        results = zip(drawn, step(plan), strict=True)
        return [e._replace(finish=BROKEN) if s.request.id == broken.id else e for s, e in results]

    big.model.step = damaged  # type: ignore[method-assign]
    big.run()
    failed = [m for m in big.messages if isinstance(m, Failed)]
    assert [(m.id, m.error["name"]) for m in failed] == [(broken.id, "bad_model_file")]
    big.check(sound)
