"""A runner's inputs and outputs as arrays, for the host to write and read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from luced.device.device import Device
from luced.engine.inputs import ROW_STATE, SAMPLE_ROW, EntryInputs, GroupInputs
from luced.engine.plan import Chunk

if TYPE_CHECKING:
    from luced.engine.runner import Runner


class GroupArrays:
    def __init__(self, device: Device, g: GroupInputs) -> None:
        self.page_table = device.view(g.page_table)
        self.slots = device.view(g.slots)
        self.copies = device.view(g.copies)
        self.n_copies = device.view(g.copies_rows.counter)

    def fill(self, g: int, chunks: Iterable[Chunk]) -> None:
        """Where the cells are that a step of these chunks sees, and completes, in group g."""
        begin = 0
        for chunk in chunks:
            table, slots = chunk.sequence.tables[g], chunk.slots[g]
            self.page_table[chunk.sequence.slot, : len(table)] = table
            end = begin + len(slots)
            self.slots[begin:end] = slots
            begin = end


class EntryArrays:
    def __init__(self, device: Device, e: EntryInputs) -> None:
        self.ratio = e.ratio
        self.n = device.view(e.rows.counter)
        self.seq, self.first, self.last = device.view(e.seq), device.view(e.first), device.view(e.last)
        self.row_cell = device.view(e.row_cell)

    def fill(self, chunks: Iterable[Chunk], positions: npt.NDArray[np.int32]) -> None:
        """The cells that a step of these chunks completes: a draft tree none."""
        seq: list[int] = []
        cells: list[int] = []
        for chunk in chunks:
            if chunk.parents:
                assert (max(chunk.positions) + 1) // self.ratio == chunk.position // self.ratio
                continue
            done = range(chunk.position // self.ratio, (chunk.position + len(chunk.tokens)) // self.ratio)
            seq += [chunk.sequence.slot] * len(done)
            cells += done
        n = self.n[0] = len(cells)
        self.seq[:n] = seq
        self.first[:n] = np.array(cells, np.int32) * self.ratio
        self.last[:n] = self.first[:n] + (self.ratio - 1)
        self.row_cell[: len(positions)] = (positions + 1) // self.ratio - 1


class Arrays:
    """The inputs and outputs as arrays, rows first."""

    def __init__(self, runner: Runner) -> None:
        device, i = runner.device, runner.inputs
        view = device.view
        self.n_rows, self.n_out, self.n_count = (view(r.counter) for r in (i.rows, i.out_rows, i.count_rows))
        self.tokens, self.positions, self.row_seq = view(i.tokens), view(i.positions), view(i.row_seq)
        self.row_cell, self.out_index = view(i.row_cell), view(i.out_index)
        self.parents, self.seq_past = view(i.parents), view(i.seq_past)
        self.groups = [GroupArrays(device, g) for g in runner.group_inputs]
        self.entries = [EntryArrays(device, e) for e in runner.entry_inputs.values()]
        if runner.state_inputs is not None:
            self.seq_slot, self.out_slots = view(runner.state_inputs.seq_slot), view(runner.state_inputs.out_slots)
        self.sample_rows = view(i.sample_rows).view(SAMPLE_ROW)
        self.sample_position, self.sample_token = self.sample_rows["position"], self.sample_rows["token"]
        self.bias_ids, self.bias_values = view(i.bias_ids), view(i.bias_values)
        self.state_slots, self.stop_ids = view(i.state_slots), view(i.stop_ids)
        self.row_state = view(i.row_state).view(ROW_STATE)
        self.finish = self.row_state["finish"]
        self.count_slots, self.count_tokens = view(i.count_slots), view(i.count_tokens)
        self.count_amount = view(i.count_amount)
        self.logits, self.emitted = view(runner.logits), view(runner.emitted)
        self.logprob = view(runner.drawn.logprob)
        self.top_ids, self.top_logprobs = view(runner.drawn.top_ids), view(runner.drawn.top_logprobs)
        self.rows_of_slots = np.zeros(runner.n_seqs, SAMPLE_ROW)  # but for position and token

    def fill_tree(self, chunks: Iterable[Chunk]) -> None:
        """Which rows the rows of a step come after."""
        begin = 0
        for chunk in chunks:
            n = len(chunk.tokens)
            parents = np.array(chunk.parents or range(-1, n - 1), np.int32)
            self.parents[begin : begin + n] = np.where(parents < 0, -1, begin + parents)
            self.seq_past[chunk.sequence.slot] = chunk.position
            begin += n
