"""The fixed buffers through which a step gets its data: inputs, which the host writes before each step, and what stays
there from one to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from luced.device import abi
from luced.device.values import Call, Rows, Value, make_value
from luced.engine.plan import GroupSpec
from luced.link import MAX_BIAS, MAX_STOP_IDS

SAMPLE_ROW: np.dtype[Any] = np.dtype(abi.SampleRow)
ROW_STATE: np.dtype[Any] = np.dtype(abi.RowState)

MAX_COUNTS = 4096  # tokens counted by one run of the counting program
MAX_COPIES = 256  # pages copied by one run of a copying program


class GroupInputs:
    """Where the cells are that this step completes in one cache group: one for each row, or compressed cell."""

    def __init__(
        self, spec: GroupSpec, page_size: int, n_ctx: int, n_seqs: int, rows: Rows, entries: EntryInputs | None
    ) -> None:
        name = spec.name
        rows = entries.rows if entries else rows
        self.entries = entries
        self.cell_pos = make_value(f"{name}.cell_pos", "cache", "I32", page_size // spec.ratio, spec.n_pages)
        self.page_table = make_value(f"{name}.page_table", "table", "I32", -(-n_ctx // page_size), n_seqs)
        self.slots = make_value(f"{name}.slots", "input", "I32", rows.bound, rows=rows)
        self.copies_rows = ragged(f"{name}.n_copies", MAX_COPIES)
        self.copies = make_value(f"{name}.copies", "input", "I32", 3, MAX_COPIES, rows=self.copies_rows)


class EntryInputs:
    """The compressed cells of `ratio` tokens that this step completes, and which is the last that each row sees."""

    def __init__(self, ratio: int, n_seqs: int, rows: Rows) -> None:
        self.ratio = ratio
        self.rows = ragged(f"n_entries_{ratio}", min(rows.bound, rows.bound // ratio + n_seqs))
        self.seq, self.first, self.last = (
            make_value(f"entry_{what}_{ratio}", "input", "I32", self.rows.bound, rows=self.rows)
            for what in ("seq", "first", "last")
        )
        self.row_cell = make_value(f"row_cell_{ratio}", "input", "I32", rows.bound, rows=rows)


class StateInputs:
    """Where this step's rows find and leave their recurrent states."""

    def __init__(self, n_seqs: int, rows: Rows) -> None:
        self.seq_slot = make_value("states.seq_slot", "input", "I32", n_seqs)
        self.out_slots = make_value("states.out_slots", "input", "I32", rows.bound, rows=rows)


class Inputs:
    """n_batch rows come in, n_seqs of them can be asked for logits."""

    def __init__(self, n_batch: int, n_seqs: int, n_vocab: int) -> None:
        self.rows = ragged("n_rows", n_batch)
        self.out_rows = ragged("n_out", n_seqs)
        self.count_rows = ragged("n_count", MAX_COUNTS)
        # A step leaves the token that it draws from its i-th output row where the next one reads that of its i-th row.
        drawn = make_value("tokens", "output", "I32", max(n_batch, n_seqs))
        self.tokens = replace(drawn, ne=(n_batch,), rows=self.rows)
        self.emitted = replace(drawn, name="emitted", ne=(n_seqs,), rows=self.out_rows)
        self.positions = self._input("positions", n_batch, self.rows)
        self.row_seq = self._input("row_seq", n_batch, self.rows)
        self.row_cell = self._input("row_cell", n_batch, self.rows)
        self.parents = self._input("parents", n_batch, self.rows)
        self.seq_past = self._input("seq_past", n_seqs)
        self.out_index = self._input("out_index", n_seqs, self.out_rows)
        self.sample_rows = _structs("sample_rows", "input", SAMPLE_ROW, n_seqs, self.out_rows)
        self.bias_ids = make_value("bias_ids", "host", "I32", n_seqs * MAX_BIAS)
        self.bias_values = make_value("bias_values", "host", "F32", n_seqs * MAX_BIAS)
        self.state_slots = self._input("state_slots", n_seqs, self.out_rows)
        self.row_state = _structs("row_state", "output", ROW_STATE, n_seqs)
        self.stop_ids = make_value("stop_ids", "table", "I32", MAX_STOP_IDS, n_seqs)
        self.forced = make_value("forced", "table", "I32", 1, n_seqs)
        self.counts = make_value("counts", "cache", "I32", n_vocab, n_seqs)
        self.count_slots = self._input("count_slots", MAX_COUNTS, self.count_rows)
        self.count_tokens = self._input("count_tokens", MAX_COUNTS, self.count_rows)
        self.count_amount = self._input("count_amount", MAX_COUNTS, self.count_rows)

    def in_tree(self, call: Call) -> Call:
        """The same for rows that come after their parents: what it finds of earlier rows it finds along these.
        Compressed cells are all of the past: a draft ends before it would complete one."""
        if call.args.get("row_cell", self.row_cell) is not self.row_cell:
            return call
        given = {"parents": self.parents, "seq_past": self.seq_past}
        return replace(call, args=call.args | {name: value for name, value in given.items() if name in call.args})

    @staticmethod
    def _input(name: str, n: int, rows: Rows | None = None) -> Value:
        return make_value(name, "input", "I32", n, rows=rows)


def ragged(name: str, bound: int) -> Rows:
    return Rows(bound, make_value(name, "input", "I32", 1))


def _structs(name: str, kind: str, dtype: np.dtype[Any], n: int, rows: Rows | None = None) -> Value:
    value = make_value(name, kind, "U8", n * dtype.itemsize)
    return Value(name, value.storage, "U8", (n,), (dtype.itemsize,), rows=rows)
