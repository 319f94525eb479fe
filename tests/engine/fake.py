"""A model without arithmetic whose tokens depend on every cell that a row sees.

A cell holds a number made of its token, its position and all cells that its row saw: a wrong page, a stale cell, a copy
that was forgotten or a window that was cut too short changes all that follows. So does a wrong recurrent state.

A group of compressed cells, `x`, has one cell for `ratio` tokens, made when the last of them runs, of what the group
`x_tokens` has of them and of as many before them. Rows see those that rows before them made.
"""

from __future__ import annotations

from collections.abc import Sequence

from luced.engine.plan import LENGTH, RUNNING, STOP, UNKNOWN, Chunk, Emitted, GroupSpec, Plan
from luced.link import Generate

N_VOCAB = 50


class FakeModel:
    architecture = "fake"
    n_vocab = N_VOCAB
    capabilities = frozenset({"embed"})
    pooling = "mean"

    def __init__(
        self,
        groups: tuple[GroupSpec, ...] = (GroupSpec("full", 64),),
        page_size: int = 4,
        n_batch: int = 16,
        n_seqs: int = 4,
        n_ctx: int = 1 << 20,
        n_states: int = 0,
        runs_ahead: bool = False,
    ) -> None:
        self.groups = groups
        self.page_size = page_size
        self.n_batch = n_batch
        self.n_seqs = n_seqs
        self.n_ctx = n_ctx
        self.n_states = n_states
        self.runs_ahead = runs_ahead
        self.memory = {"kv": 1}
        self.is_closed = False
        self.plans: list[Plan] = []
        self._cells = [[-1] * (group.n_pages * page_size // group.ratio) for group in groups]
        self._states = [-3] * n_states  # what no row has stored
        self._rows: list[_Row | None] = [None] * n_seqs
        self._launched: list[tuple[Plan, list[Emitted]]] = []  # steps that are not read, and what they gave
        self._drawn: list[int] = []  # by the last one

    @property
    def is_busy(self) -> bool:
        return bool(self._launched)

    @property
    def under_way(self) -> Plan:
        """The last step that was launched and is not read."""
        return self._launched[-1][0]

    def launch(self, plan: Plan) -> None:
        if self._launched:
            (before, _), *more = self._launched
            assert self.runs_ahead
            assert not more
            assert [c.sequence for c in plan.chunks] == [c.sequence for c in before.chunks]
            assert all(c.tokens == [UNKNOWN] for c in plan.chunks)
        self._launched.append((plan, self.step(plan)))

    def read(self) -> list[Emitted]:
        return self._launched.pop(0)[1]

    def step(self, plan: Plan) -> list[Emitted]:
        self.plans.append(plan)
        assert plan.n_rows == sum(len(chunk.tokens) for chunk in plan.chunks) <= self.n_batch
        assert 0 < len(plan.chunks) <= self.n_seqs
        for group, cells, copies in zip(self.groups, self._cells, plan.copies, strict=True):
            self._copy(cells, copies, self.page_size // group.ratio)
        for g in range(len(self.groups)):
            written = [slot for chunk in plan.chunks for slot in chunk.slots[g]]
            assert len(written) == len(set(written)), "two rows write the same cell"
        before = list(self._states)
        stored = [slot for chunk in plan.chunks for _, slot in chunk.stores]
        assert len(stored) == len(set(stored)), "two rows store in one slot"
        for chunk in plan.chunks if self._states else ():
            assert chunk.stores[-1][0] == len(chunk.tokens) - 1
            assert (chunk.source < 0) == (chunk.position == 0)
            assert chunk.source not in {s for other in plan.chunks if other is not chunk for _, s in other.stores}
        emitted = []
        drawn, self._drawn = self._drawn, []
        for i, chunk in enumerate(plan.chunks):
            sequence = chunk.sequence
            if chunk.tokens == [UNKNOWN]:
                chunk = chunk._replace(tokens=[drawn[i]])
            if chunk.fresh:
                generated = sequence.tokens[sequence.n_prompt :]
                self._rows[sequence.slot] = _Row(sequence.n_left, frozenset(sequence.stop_ids), list(generated))
            value = 0
            state = before[chunk.source] if self._states and chunk.source >= 0 else 0
            stores = dict(chunk.stores)
            for i, token in enumerate(chunk.tokens):
                position = chunk.position + i
                value = self._value(sequence.tables, token, position, state)
                if self._states:
                    state = hash((state, token))
                if i in stores:
                    self._states[stores[i]] = state
                self._write(chunk, i, value)
            if chunk.has_result and sequence.pooling:  # the vector is what the last row saw
                emitted.append(Emitted(-1, LENGTH, vector=[float(value)]))
            if chunk.n_out:
                row = self._rows[sequence.slot]
                assert row is not None
                position = chunk.position + len(chunk.tokens)
                token = _draw(value, sequence.sampling.seed, sequence.choice, position, row.generated)
                emitted.append(row.emit(token))
                self._drawn.append(token)
        assert sum(one.vector is None for one in emitted) == plan.n_out
        return emitted

    def close(self) -> None:
        self.is_closed = True

    def _write(self, chunk: Chunk, i: int, value: int) -> None:
        """The cells that row i of the chunk completes, compressed ones last: they are made of the others."""
        for cells, group, slots in zip(self._cells, self.groups, chunk.slots, strict=True):
            if group.ratio == 1:
                cells[slots[i]] = value
        end = chunk.position + i + 1
        for cells, group, slots in zip(self._cells, self.groups, chunk.slots, strict=True):
            if group.ratio > 1 and end % group.ratio == 0:
                of = [other.name for other in self.groups].index(f"{group.name}_tokens")
                first = max(0, end - 2 * group.ratio)
                slot = slots[end // group.ratio - chunk.position // group.ratio - 1]
                cells[slot] = hash((*self._read(of, chunk.sequence.tables[of], range(first, end)),))

    def _copy(self, cells: list[int], copies: list[tuple[int, int, int]], page_size: int) -> None:
        sources, destinations = {src for src, _, _ in copies}, [dst for _, dst, _ in copies]
        assert len(destinations) == len(set(destinations))
        assert not sources & set(destinations)
        for src, dst, n in copies:
            src, dst = src * page_size, dst * page_size
            cells[dst : dst + n] = cells[src : src + n]

    def _value(self, tables: Sequence[Sequence[int]], token: int, position: int, state: int) -> int:
        seen = []
        for g, group in enumerate(self.groups):
            first = max(0, position - group.window + 1) if group.window else 0
            seen += self._read(g, tables[g], range(first, position // group.ratio))
        return hash((token, position, state, *seen))

    def _read(self, g: int, table: Sequence[int], cells: range) -> list[int]:
        n = self.page_size // self.groups[g].ratio
        pages = [table[cell // n] for cell in cells]
        return [
            self._cells[g][page * n + cell % n] if page >= 0 else -2 for page, cell in zip(pages, cells, strict=True)
        ]


class _Row:
    """What the device keeps of a sequence."""

    def __init__(self, n_left: int, stop_ids: frozenset[int], generated: list[int]) -> None:
        self.n_left = n_left
        self.stop_ids = stop_ids
        self.generated = generated

    def emit(self, token: int) -> Emitted:
        self.n_left -= 1
        self.generated.append(token)
        finish = STOP if token in self.stop_ids else LENGTH if self.n_left == 0 else RUNNING
        return Emitted(token, finish, -1.0, ((token, -1.0),))


def _draw(value: int, seed: int, choice: int, position: int, generated: list[int]) -> int:
    return hash((value, seed, choice, position, *sorted(generated))) % N_VOCAB


def alone(
    groups: tuple[GroupSpec, ...], generate: Generate, choice: int, has_state: bool = False
) -> tuple[list[int], str]:
    """Tokens and reason of a choice by definition: no pages, no chunks, no company."""
    values: list[int] = []
    state = 0
    generated: list[int] = []
    tokens = list(generate.prompt)
    while True:
        for position in range(len(values), len(tokens)):
            seen = []
            for group in groups:
                if group.ratio > 1:
                    ends = [(cell + 1) * group.ratio for cell in range(position // group.ratio)]
                    seen += [hash((*values[max(0, end - 2 * group.ratio) : end],)) for end in ends]
                else:
                    seen += values[max(0, position - group.window + 1) if group.window else 0 : position]
            values.append(hash((tokens[position], position, state, *seen)))
            state = hash((state, tokens[position])) if has_state else 0
        if len(generated) == generate.max_tokens:
            return generated, "length"
        token = _draw(values[-1], generate.sampling.seed, choice, len(tokens), generated)
        tokens.append(token)
        generated.append(token)
        if token in generate.stop_ids:
            return generated, "stop"
