"""The border between policy and runner: what a step computes, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from luced.engine.sequence import Sequence, Table

RUNNING, STOP, LENGTH = 0, 1, 2  # luce_finish
BROKEN = 3  # of our own: the logits hold no finite number
UNKNOWN = -1  # a token that only the device knows: the step before has drawn it


@dataclass(frozen=True)
class GroupSpec:
    """A cache group: layers whose cells live and die together."""

    name: str
    n_pages: int
    window: int = 0  # a row at position p sees cells at positions > p - window; 0: all
    ratio: int = 1  # tokens that a cell stands for: it is there once the last of them is; divides the size of a page

    def slots(self, table: Table[int], begin: int, end: int, page_size: int) -> list[int]:
        """Where the cells are that the tokens begin to end - 1 complete."""
        n = page_size // self.ratio
        return [table[cell // n] * n + cell % n for cell in range(begin // self.ratio, end // self.ratio)]


class Chunk(NamedTuple):
    """Adjacent rows of one sequence: tokens at positions position, position + 1, ... (a cell's number is its position).

    A draft tree has `parents`: the row of the chunk that each row comes after, -1: the token before the chunk. Its rows
    have cells side by side all the same; how deep a row is tells its position.

    The page tables are sequence.tables[group]; the sequence's row state and counts are at sequence.slot. A fresh chunk
    is the first since the sequence got that slot: the runner then sets both, from n_left, stop_ids and tokens (those
    after n_prompt were generated, before the sequence had to give its slot up).
    """

    sequence: Sequence
    tokens: list[int]
    position: int
    slots: tuple[list[int], ...]  # for each group, where the cells are that its tokens complete: GroupSpec.slots
    n_out: int  # 1: its last row is the sequence's last known token, and the next one is drawn from it; else 0
    fresh: bool
    source: int = -1  # the slot of the recurrent state that its first row goes on from; -1: from zeros
    stores: tuple[tuple[int, int], ...] = ()  # (row of the chunk, slot): where the state after some rows is stored
    parents: tuple[int, ...] = ()  # of a draft tree, each before its children; (): each row comes after the one before

    @property
    def positions(self) -> Iterable[int]:
        if not self.parents:
            return range(self.position, self.position + len(self.tokens))
        found: list[int] = []
        for parent in self.parents:
            found.append(self.position if parent < 0 else found[parent] + 1)
        return found

    @property
    def has_result(self) -> bool:
        """The step gives an Emitted for it: a token, or the vector that all rows of its sequence were pooled into."""
        sequence = self.sequence
        return self.n_out > 0 or (sequence.pooling != "" and self.position + len(self.tokens) == sequence.n_prompt)


class Plan(NamedTuple):
    """One step: first the copies, then the chunks, in batch order."""

    chunks: tuple[Chunk, ...]
    copies: tuple[list[tuple[int, int, int]], ...]  # for each group: source page, destination page, cells
    n_rows: int  # of all chunks
    n_out: int


def begin(chunks: tuple[Chunk, ...], copies: tuple[list[tuple[int, int, int]], ...]) -> Plan:
    """A step that is under way from now on."""
    for chunk in chunks:
        chunk.sequence.n_under_way += 1
    return Plan(chunks, copies, sum(len(chunk.tokens) for chunk in chunks), sum(chunk.n_out for chunk in chunks))


class Emitted(NamedTuple):
    """What a chunk with a result gave."""

    token: int
    finish: int = RUNNING  # STOP: the token is a stop id; LENGTH: it was the last that max_tokens allowed; or BROKEN
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()  # the n_logprobs best (id, logprob), best first
    vector: list[float] | None = None  # of a sequence that is pooled, instead of a token


class Model(Protocol):
    """A resident model, as the loader gives it."""

    architecture: str
    n_ctx: int
    n_vocab: int
    page_size: int  # tokens that a page of any group covers
    groups: tuple[GroupSpec, ...]  # the first has no window
    n_states: int  # slots of recurrent states; 0: it has none
    n_batch: int  # most rows of a step
    n_seqs: int  # most sequences of a step: slots are 0..n_seqs - 1
    memory: dict[str, int]  # bytes by owner
    capabilities: frozenset[str]
    pooling: str  # of embeddings, where the caller does not say
    runs_ahead: bool  # whether steps should be launched before the last one is read

    def launch(self, plan: Plan) -> None:
        """Begins a step. At most two are not read: then the rows of the second are those of the first, one further, and
        their tokens UNKNOWN. EngineError: the device failed."""
        ...

    def read(self) -> list[Emitted]:
        """Waits for the first step that was not read; one Emitted for each chunk that has a result, in order.
        EngineError: the device failed."""
        ...

    def close(self) -> None:
        """Gives all memory back."""
        ...


def kv_types(kv_type: str) -> tuple[str, str]:
    """Of keys and of values."""
    k, _, v = kv_type.upper().partition("/")
    return k, v or k
