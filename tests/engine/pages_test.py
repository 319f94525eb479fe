"""Pools of pages and tables of slots."""

from __future__ import annotations

import pytest

from luced.engine.pages import Pool
from luced.engine.slots import Slots


def test_a_page_is_free_again_when_nobody_has_it() -> None:
    pool = Pool(2)
    page = pool.take()
    pool.hold(page)
    pool.drop(page)
    assert (pool.n_free, pool.n_available) == (1, 1)
    pool.drop(page)
    assert (pool.n_free, pool.n_available) == (2, 2)


def test_a_cached_page_is_idle_without_users() -> None:
    pool = Pool(2)
    page = pool.take()
    pool.cache(page)
    assert pool.n_available == 1
    pool.drop(page)
    assert (pool.n_free, pool.n_idle, pool.n_available) == (1, 1, 2)
    pool.hold(page)
    assert (pool.n_free, pool.n_idle) == (1, 0)
    pool.drop(page)
    pool.uncache(page)
    assert (pool.n_free, pool.n_idle) == (2, 0)


def test_a_page_in_use_outlives_the_cache() -> None:
    pool = Pool(1)
    page = pool.take()
    pool.cache(page)
    pool.uncache(page)
    assert (pool.n_free, pool.n_idle) == (0, 0)
    pool.drop(page)
    assert pool.n_free == 1


@pytest.mark.parametrize("misuse", ["hold", "drop", "cache", "uncache"])
def test_misuse_is_noticed(misuse: str) -> None:
    with pytest.raises(AssertionError):
        getattr(Pool(1), misuse)(0)


def test_the_least_free_slot_is_taken() -> None:
    slots = Slots(3)
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.give_back(2)
    slots.give_back(0)
    assert (slots.n_free, slots.take()) == (2, 0)
    with pytest.raises(AssertionError):
        slots.give_back(2)
