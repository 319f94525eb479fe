"""Recurrent states: where a prompt's are kept, who goes on from them, and what never becomes one."""

from __future__ import annotations

from typing import Any

import pytest

from luced.engine.checkpoints import where
from luced.engine.plan import BROKEN, Emitted
from tests.engine.fake import FakeModel, alone
from tests.engine.scheduler_test import Bench


class StateBench(Bench):
    def __init__(self, n_states: int = 8, n_batch: int = 64) -> None:
        super().__init__(FakeModel(n_states=n_states, n_batch=n_batch))

    def n_cached(self, prompt: list[int], **fields: Any) -> int:
        """Prompt tokens that come from the cache; the answer is right."""
        generate = self.submit(prompt, **fields)
        self.run()
        said = self.tokens(generate), self.finished(generate).reason
        assert said == alone(self.model.groups, generate, 0, has_state=True)
        return self.finished(generate).usage["n_cached"]


def test_where_a_prompt_is_kept() -> None:
    assert where(100, [10, 20, 30, 95], 1) == [10, 30, 95]
    assert where(100, [10, 95], 3) == [10, 95, 99]
    assert where(100, [], 1) == [99]
    assert where(100, [100, 100, 10, 300], 1) == [10, 100]
    assert where(1, [], 4) == []


@pytest.mark.parametrize("n_batch", [4, 7, 64])
def test_the_longest_prefix_that_has_a_state(n_batch: int) -> None:
    b = StateBench(n_batch=n_batch)
    prompt = list(range(30))
    assert b.n_cached(prompt, boundaries=[6, 13, 27]) == 0
    assert b.n_cached(prompt[:29], max_tokens=0) == 27
    assert b.n_cached(prompt[:26], max_tokens=0) == 13
    assert b.n_cached([*prompt[:12], 49], max_tokens=0) == 6
    assert b.n_cached(prompt[:6], max_tokens=0) == 0


def test_a_state_beside_the_longest_match() -> None:
    b = StateBench()
    b.n_cached([0, 1, 2, 3, 4, 5, 9, 9], boundaries=[6])
    b.n_cached([0, 1, 2, 3, 4, 5, 8, 8, 8], boundaries=[9])
    assert b.n_cached([0, 1, 2, 3, 4, 5, 8, 8, 7], boundaries=[9]) == 6


def test_an_answer_is_gone_on_from() -> None:
    b = StateBench()
    first = b.submit(range(9), boundaries=[9], max_tokens=5)
    b.run()
    assert b.n_cached([*range(9), *b.tokens(first), 1, 2]) == 13  # its last token was drawn, not read


def test_what_was_cut_off_leaves_no_state() -> None:
    b = StateBench()
    first = b.submit(range(9), boundaries=[9], max_tokens=9)
    for _ in range(6):
        b.step()
    b.messages += b.scheduler.truncate(first.id, 0, 2, b.now)
    assert b.n_cached([*range(9), *b.tokens(first)[:2], 7]) == 9


def test_who_was_abandoned_leaves_what_was_done() -> None:
    b = StateBench(n_batch=8)
    first = b.submit(range(30), boundaries=[30])
    b.step()
    b.step()
    b.scheduler.abandon(first.id)
    assert b.n_cached(list(range(30))) == 16


def test_a_broken_model_leaves_no_state() -> None:
    b = StateBench()
    b.submit(range(9), boundaries=[9], n=2)
    b.step()
    plan = b.scheduler.plan(b.now)
    assert plan is not None
    b.model.step(plan)
    b.scheduler.commit(plan, [Emitted(0, BROKEN) for _ in plan.chunks], b.now)
    assert b.scheduler.cache.checkpoints is not None
    kept = [n for _, n in b.scheduler.cache.checkpoints._kept]
    assert len(kept) == 2  # of the step before: tokens 8 and 9


def test_the_least_recently_used_goes_first() -> None:
    b = StateBench(n_states=4)
    b.n_cached([1] * 9, boundaries=[5])
    b.n_cached([2] * 9, boundaries=[5], max_tokens=0)
    assert b.n_cached([1] * 6, max_tokens=0, boundaries=[5]) == 5
    b.n_cached([3] * 9, boundaries=[5], max_tokens=0)
    assert b.n_cached([1] * 6, max_tokens=0, boundaries=[5]) == 5
    assert b.scheduler.cache.checkpoints is not None
    assert b.scheduler.cache.checkpoints.n_evicted > 0
    assert b.n_cached([2] * 6, max_tokens=0) == 0


def test_with_two_slots_one_after_the_other_runs() -> None:
    b = StateBench(n_states=2)
    generates = [b.submit([i, 1, 2, 3, 4, 5, 6], boundaries=[4]) for i in range(3)]
    b.run()
    for generate in generates:
        assert b.tokens(generate) == alone(b.model.groups, generate, 0, has_state=True)[0]
