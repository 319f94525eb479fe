"""The cells of a model's sequences: page tables over the pools of all groups, begun from the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luced.engine.checkpoints import Checkpoints, where
from luced.engine.pages import Pool
from luced.engine.plan import GroupSpec
from luced.engine.prefix import Node, PrefixCache, first_seen
from luced.engine.sequence import Sequence, Table


class Cache:
    """In a sequence's life: start; for each chunk extend, and after its step ran; release."""

    def __init__(self, groups: tuple[GroupSpec, ...], page_size: int, n_states: int = 0) -> None:
        """n_states: slots of recurrent states; 0: the model has none."""
        self.groups = groups
        self.page_size = page_size
        self.pools = [Pool(group.n_pages) for group in groups]
        self.checkpoints = Checkpoints(n_states) if n_states else None
        self.prefix = PrefixCache(groups, page_size, self.pools, self.checkpoints)
        # Pages that `window` cells touch at most: what a sequence that grows cell by cell needs at once. 0: no window.
        self._most = [(group.window + page_size - 2) // page_size + 1 if group.window else 0 for group in groups]
        for group, most in zip(groups, self._most, strict=True):
            assert group.n_pages > most, f"cache group {group.name!r} needs {most + 1} pages, has {group.n_pages}"

    @property
    def n_cells(self) -> int:
        """What one sequence can have when it is alone: a page of each group stays free for the source of a copy."""
        return self.page_size * min(group.n_pages - 1 for group in self.groups if not group.window)

    def start(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Gives it what the cache has of its tokens, except for the last: its logits are needed.

        False: beside what the running ones will need for the tokens they have, there is no room for the rest.
        """
        tokens = sequence.tokens
        limit = len(tokens) - 1 if sequence.is_cacheable else 0
        path, length = self.prefix.match(sequence.tenant, tokens, limit)
        n_shared, n_copied = divmod(length, self.page_size)
        for g, pool in enumerate(self.pools):
            first = first_seen(length, self.groups[g].window) // self.page_size
            n_idle = sum(not pool.n_users[node.pages[g]] for node in path[first:])  # idle no more when it has them
            n_new = self._n_missing(g, len(tokens), n_shared, n_shared - first)
            n_others = sum(max(1, self._n_missing(g, len(o.tokens), len(o.tables[g]), 0)) for o in running)
            if n_new + n_idle + n_others > pool.n_available:
                return False
        if self.checkpoints is not None:
            n_last = length - (len(path) - 1) * self.page_size
            if not self.checkpoints.can_start(path[-1].states[n_last] if path else -1):
                return False
            self.checkpoints.start(sequence, path[-1] if path else None, n_last)
            sequence.n_state = length
            if sequence.is_cacheable:
                generate = sequence.request.generate
                sequence.checkpoints = where(sequence.n_prompt, generate.boundaries, generate.n)
        self.prefix.touch(path, length)
        sequence.tables = [self._share(g, path[:n_shared], length) for g in range(len(self.groups))]
        if n_copied:
            self._copy(sequence, path[n_shared], n_copied)
        sequence.path = path[:n_shared]
        sequence.n_done = length
        return True

    def n_rows(self, sequence: Sequence, n: int) -> int:
        """As many of the sequence's next n rows as can have cells."""
        n_have = len(sequence.tables[0]) * self.page_size - sequence.n_done
        if n_have >= n:
            return n
        return min(n, n_have + self.page_size * min(pool.n_available for pool in self.pools))

    def extend(self, sequence: Sequence, n: int, n_under_way: int = 0) -> tuple[list[int], ...]:
        """Makes room for n rows, which come after those under way (no more than n_rows): their slots in each group."""
        size, begin = self.page_size, sequence.n_done + n_under_way
        end = begin + n
        slots = []
        for g, table in enumerate(sequence.tables):
            while len(table) * size < end:
                table.append(self._take(g))
            slots.append(self.groups[g].slots(table, begin, end, size))
        return tuple(slots)

    def stores(self, sequence: Sequence, n: int) -> tuple[tuple[int, int], ...]:
        """After which of its next n rows the recurrent state is stored, and in which slots."""
        return self.checkpoints.plan(sequence, n) if self.checkpoints is not None else ()

    def ran(self, sequence: Sequence, n: int) -> None:
        """Its next n rows have run: what the prefix cache can use of them it has, what no later row sees is free."""
        sequence.n_done += n
        self._copied(sequence)
        last = None
        if n > 1 or sequence.n_done <= sequence.n_prompt:
            last = self._keep(sequence)
        if self.checkpoints is not None:
            for n_tokens, slot in self.checkpoints.ran(sequence):
                self._keep_state(sequence, last, n_tokens, slot)
                if slot != sequence.source:
                    self.checkpoints.pool.drop(slot)
        self._trim(sequence)

    def distrust(self, sequences: Iterable[Sequence]) -> None:
        """Their recurrent states are not for the prefix cache."""
        for sequence in sequences:
            sequence.n_state = -1

    def _keep_state(self, sequence: Sequence, last: Node | None, n_tokens: int, slot: int) -> None:
        """The node of its n-th token keeps the state after it; `last` follows its path."""
        assert self.checkpoints is not None
        depth = (n_tokens - 1) // self.page_size
        node = sequence.path[depth] if depth < len(sequence.path) else last
        assert node is not None, "its cells are in the prefix cache"
        self.checkpoints.keep(node, n_tokens - depth * self.page_size, slot)

    def _copied(self, sequence: Sequence) -> None:
        """Its copies have been made."""
        for g, src, _, _ in sequence.copies:
            self.pools[g].drop(src)
        sequence.copies.clear()

    def _keep(self, sequence: Sequence) -> Node | None:
        """Puts its cells into the prefix cache; gives the node of a last page that is not full."""
        if not sequence.is_cacheable:
            return None
        return self.prefix.insert(sequence.tenant, sequence.tokens, sequence.n_done, sequence.tables, sequence.path)

    def _trim(self, sequence: Sequence) -> None:
        """Gives back the pages that no later row sees."""
        for g, group in enumerate(self.groups):
            if not group.window:
                continue
            table = sequence.tables[g]
            i = first_seen(sequence.n_done, group.window) // self.page_size - 1
            while i >= 0 and table[i] >= 0:
                self.pools[g].drop(table[i])
                table[i] = -1
                i -= 1

    def release(self, sequence: Sequence) -> None:
        """Takes all its pages; the prefix cache keeps what it can."""
        last = None if sequence.copies else self._keep(sequence)  # with copies to be made, its last cells are not there
        self.prefix.touch([*sequence.path, last] if last else sequence.path, sequence.n_done)
        if self.checkpoints is not None:
            if sequence.is_cacheable and sequence.source == sequence.state and sequence.n_state == sequence.n_done > 0:
                self._keep_state(sequence, last, sequence.n_done, sequence.state)
            self.checkpoints.release(sequence)
        self._copied(sequence)
        for pool, table in zip(self.pools, sequence.tables, strict=True):
            for page in table:
                if page >= 0:
                    pool.drop(page)
        sequence.tables, sequence.path, sequence.n_done = [], [], 0

    def state(self) -> dict[str, Any]:
        """How many entries the prefix cache lost, and each group's pages: in all, free, and kept but unused."""
        pools = zip(self.groups, self.pools, strict=True)
        pages = {g.name: {"total": g.n_pages, "free": pool.n_free, "cached": pool.n_idle} for g, pool in pools}
        state: dict[str, Any] = {"n_evicted": self.prefix.n_evicted, "pages": pages}
        if self.checkpoints is not None:
            slots = self.checkpoints.pool
            state["states"] = {"total": slots.n_pages, "free": slots.n_free, "cached": slots.n_idle}
        return state

    def _n_missing(self, g: int, n_tokens: int, n_pages: int, n_seen: int) -> int:
        """Pages that n_tokens need beyond the first n_pages, n_seen of which the window still sees."""
        n_missing = -(-n_tokens // self.page_size) - n_pages
        return min(n_missing, self._most[g] - n_seen) if self._most[g] else n_missing

    def _share(self, g: int, path: list[Node], length: int) -> Table[int]:
        first = first_seen(length, self.groups[g].window) // self.page_size
        table = Table("i", [-1] * min(first, len(path)) + [node.pages[g] for node in path[first:]])
        for page in table[first:]:
            self.pools[g].hold(page)
        return table

    def _copy(self, sequence: Sequence, node: Node, n_tokens: int) -> None:
        for g, pool in enumerate(self.pools):
            pool.hold(node.pages[g])  # until the copy has been made
        for g, table in enumerate(sequence.tables):
            table.append(self._take(g))
            sequence.copies.append((g, node.pages[g], table[-1], n_tokens // self.groups[g].ratio))

    def _take(self, g: int) -> int:
        if not self.pools[g].n_free:
            self.prefix.evict(g)
        return self.pools[g].take()
