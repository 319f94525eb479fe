"""Slots of recurrent states: what running sequences write, and the checkpoints that the prefix cache keeps.

A sequence that runs owns a slot. A checkpoint is a slot that a node of the prefix tree keeps: the state after the first
tokens of the node. Who goes on from a checkpoint reads it there and writes elsewhere, so that nothing is ever copied.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from luced.engine.pages import Pool
from luced.engine.sequence import Sequence

if TYPE_CHECKING:
    from luced.engine.prefix import Node

N_LAST = 2  # messages at the end of a prompt whose ends are kept: the next turn begins there, or the last is asked anew


class Checkpoints:
    """`pool` has all slots; those of checkpoints that nobody reads are idle."""

    def __init__(self, n_slots: int) -> None:
        assert n_slots >= 2, "a sequence reads one state and writes another"
        self.pool = Pool(n_slots)
        self.n_evicted = 0
        self._kept: OrderedDict[tuple[Node, int], None] = OrderedDict()  # the least recently used first

    def can_start(self, source: int) -> bool:
        """Whether there is a slot for a sequence that begins by reading `source`; -1: by reading none."""
        return self.pool.n_available > (source >= 0 and not self.pool.n_users[source])

    def start(self, sequence: Sequence, node: Node | None, n_tokens: int) -> None:
        """Gives it a slot, and the node's state to go on from."""
        if node is not None:
            sequence.source = node.states[n_tokens]
            self.pool.hold(sequence.source)
            self._kept.move_to_end((node, n_tokens))
        sequence.state = self._take()

    def plan(self, sequence: Sequence, n: int) -> tuple[tuple[int, int], ...]:
        """After which of its next n rows the state is stored in which slot: always after the last."""
        begin, end = sequence.n_done, sequence.n_done + n
        for n_tokens in sequence.checkpoints:
            if begin < n_tokens <= end and self.pool.n_available:
                sequence.stored.append((n_tokens, self._take()))
        stores = [(n_tokens - begin - 1, slot) for n_tokens, slot in sequence.stored]
        return tuple(stores if stores and stores[-1][0] == n - 1 else [*stores, (n - 1, sequence.state)])

    def ran(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Its rows have run: the (tokens, slot) of the states stored on the way, which it holds still. From the last of
        these it goes on, if that is its last row's."""
        stored, sequence.stored = sequence.stored, []
        before, sequence.source = sequence.source, sequence.state
        if stored and stored[-1][0] == sequence.n_done:
            sequence.source = stored[-1][1]
        if before not in (-1, sequence.state):
            self.pool.drop(before)
        sequence.n_state = sequence.n_done
        return stored

    def keep(self, node: Node, n_tokens: int, slot: int) -> None:
        """The node keeps this state, if it has none there; the slot is in use."""
        if n_tokens not in node.states:
            self.pool.cache(slot)
            node.states[n_tokens] = slot
            self._kept[node, n_tokens] = None

    def release(self, sequence: Sequence) -> None:
        """Takes its slots."""
        held = {sequence.state, sequence.source, *(slot for _, slot in sequence.stored)} - {-1}
        for slot in held:
            self.pool.drop(slot)
        sequence.state = sequence.source = sequence.n_state = -1
        sequence.stored = []

    def forget(self, node: Node) -> None:
        """The node goes."""
        for n_tokens, slot in node.states.items():
            self.pool.uncache(slot)
            del self._kept[node, n_tokens]
        node.states = {}

    def _take(self) -> int:
        if not self.pool.n_free:
            self._evict()
        return self.pool.take()

    def _evict(self) -> None:
        for node, n_tokens in self._kept:
            slot = node.states[n_tokens]
            if not self.pool.n_users[slot]:
                self.pool.uncache(slot)
                del node.states[n_tokens], self._kept[node, n_tokens]
                self.n_evicted += 1
                return
        raise AssertionError("no idle state")


def where(n_prompt: int, boundaries: list[int], n_choices: int) -> list[int]:
    """Token counts after which a prompt's state is kept: the end of its first message, which many conversations share,
    and of the last ones. Its own end, short of the token that every choice runs itself, where choices or, without
    messages, perhaps another prompt begin there."""
    ends = sorted({n for n in boundaries if 0 < n <= n_prompt})
    found = {*ends[:1], *ends[-N_LAST:]}
    if n_prompt > 1 and (n_choices > 1 or not ends):
        found.add(n_prompt - 1)
    return sorted(found)
