"""The prefix tree: what matches, what is kept, what goes first."""

from __future__ import annotations

from luced.engine.pages import Pool
from luced.engine.plan import GroupSpec
from luced.engine.prefix import Node, PrefixCache

SIZE = 4


class Tree:
    """A prefix cache whose sequences end as soon as they are inserted."""

    def __init__(self, *groups: GroupSpec) -> None:
        self.groups = groups
        self.pools = [Pool(group.n_pages) for group in groups]
        self.cache = PrefixCache(groups, SIZE, self.pools)

    def put(self, tokens: list[int], tenant: str = "") -> list[list[int]]:
        n_pages = -(-len(tokens) // SIZE)
        tables = []
        for g, pool in enumerate(self.pools):
            while pool.n_free < n_pages:
                self.cache.evict(g)
            tables.append([pool.take() for _ in range(n_pages)])
        path: list[Node] = []
        last = self.cache.insert(tenant, tokens, len(tokens), tables, path)
        self.cache.touch([*path, last] if last else path, len(tokens))
        for pool, table in zip(self.pools, tables, strict=True):
            for page in table:
                pool.drop(page)
        return tables

    def n_matched(self, tokens: list[int], tenant: str = "") -> int:
        path, length = self.cache.match(tenant, tokens, len(tokens))
        assert len(path) == -(-length // SIZE)
        assert [t for node in path for t in node.tokens][:length] == tokens[:length]
        return length


def tree(n_pages: int = 100, n_window_pages: int = 0, window: int = 0) -> Tree:
    groups = (GroupSpec("full", n_pages),)
    return Tree(*groups, GroupSpec("swa", n_window_pages, window)) if window else Tree(*groups)


def test_the_longest_common_prefix_to_the_token() -> None:
    t = tree()
    t.put(list(range(10)))
    t.put([0, 1, 2, 3, 4, 5, 60, 70, 80])
    assert t.n_matched(list(range(20))) == 10
    assert t.n_matched([0, 1, 2, 3, 4, 5, 60, 7]) == 7
    assert t.n_matched([0, 1, 2, 3, 4, 5, 61]) == 6
    assert t.n_matched([0, 9]) == 1
    assert t.n_matched([9]) == 0
    assert t.n_matched([]) == 0
    assert t.cache.match("", list(range(10)), 7)[1] == 7


def test_what_goes_on_takes_the_place_of_what_ended() -> None:
    t = tree()
    t.put([1, 2, 3, 4, 5, 6])
    t.put([1, 2, 3, 4, 5, 6, 7])
    t.put([1, 2, 3, 4, 5])
    assert t.cache.n_nodes == 2
    assert t.n_matched([1, 2, 3, 4, 5, 6, 7, 8]) == 7
    t.put([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert t.cache.n_nodes == 3
    assert t.pools[0].n_free == 97  # the pages of equal tokens are one


def test_an_equal_page_that_is_kept_already_is_used_instead() -> None:
    t = tree()
    first = t.put([1, 2, 3, 4, 5])
    second = t.put([1, 2, 3, 4, 6])
    assert first[0][0] == second[0][0]
    assert first[0][1] != second[0][1]


def test_tenants_do_not_meet() -> None:
    t = tree()
    t.put([1, 2, 3], "a")
    assert t.n_matched([1, 2, 3], "b") == 0
    assert t.n_matched([1, 2, 3], "a") == 3


def test_the_least_recently_used_leaf_goes_first() -> None:
    t = tree(4)
    t.put([1, 2, 3, 4, 5])
    t.put([1, 2, 3, 4, 6])
    path, _ = t.cache.match("", [1, 2, 3, 4, 5], 5)
    t.cache.touch(path, 5)
    t.put([7, 8, 9, 9, 9])  # takes the one free page and that of 6
    assert t.n_matched([1, 2, 3, 4, 5]) == 5
    assert t.n_matched([1, 2, 3, 4, 6]) == 4
    t.put([0] * 16)
    assert t.n_matched([1, 2, 3, 4, 5]) == 0
    assert t.cache._roots[""].children.keys() == {(0, 0, 0, 0)}
    assert t.cache.n_evicted == 5


def test_what_is_in_use_stays() -> None:
    t = tree(4)
    (table,) = t.put([1, 2, 3, 4, 5])
    for page in table:
        t.pools[0].hold(page)
    t.put([7] * 8)
    t.put([8] * 8)
    assert t.n_matched([1, 2, 3, 4, 5]) == 5
    assert t.n_matched([7] * 8) == 0


def test_a_tenant_without_nodes_is_forgotten() -> None:
    t = tree(2)
    t.put([1, 2, 3], "a")
    t.put([4] * 8, "b")
    assert t.cache._roots.keys() == {"b"}


def test_a_match_is_cut_to_where_the_window_is_whole() -> None:
    t = tree(100, 6, 6)
    t.put(list(range(20)))
    assert t.n_matched(list(range(20))) == 20
    for _ in range(2):  # pages 0 and 1 of the window's group: the first ones go first
        t.cache.evict(1)
    assert t.n_matched(list(range(20))) == 20  # needs cells 15 to 19
    assert t.n_matched(list(range(13))) == 13  # needs cells 8 to 12
    assert t.n_matched(list(range(12))) == 0  # would need cell 7, and every shorter one more of them
    t.cache.evict(1)
    assert t.n_matched(list(range(17))) == 17
    assert t.n_matched(list(range(16))) == 0
    assert t.pools[0].n_free == 95  # the full group has lost nothing


def test_a_hole_is_filled_by_who_has_the_page() -> None:
    t = tree(100, 6, 6)
    t.put(list(range(12)))
    for _ in range(3):
        t.cache.evict(1)
    assert t.n_matched(list(range(12))) == 0
    t.put(list(range(12)))
    assert t.n_matched(list(range(12))) == 12


def test_clear_gives_everything_back() -> None:
    t = tree(20, 10, 3)
    t.put(list(range(11)))
    t.put([5] * 9, "b")
    t.cache.clear()
    assert t.n_matched(list(range(11))) == 0
    assert [pool.n_free for pool in t.pools] == [20, 10]
