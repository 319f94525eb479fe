"""A runner's inputs as arrays, for the host to write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from luced.device.device import Device
from luced.engine.inputs import ROW_STATE, SAMPLE_ROW, EntryInputs, GroupInputs
from luced.engine.plan import UNKNOWN, Chunk, Plan
from luced.engine.sequence import Sequence, Table
from luced.link import MAX_BIAS

if TYPE_CHECKING:
    from luced.engine.runner import Runner


class GroupArrays:
    def __init__(self, device: Device, g: GroupInputs) -> None:
        self._device, self._page_table = device, g.page_table
        self._written: dict[int, Table[int]] = {}  # the page table of each slot, as the device has it
        self.slots = device.view(g.slots)
        self.copies = device.view(g.copies)
        self.n_copies = device.view(g.copies_rows.counter)

    def fill(self, g: int, chunks: Iterable[Chunk]) -> None:
        """Where the cells are that a step of these chunks sees, and completes, in group g."""
        begin = 0
        for chunk in chunks:
            slot, table, slots = chunk.sequence.slot, chunk.sequence.tables[g], chunk.slots[g]
            if chunk.fresh or self._written.get(slot) != table:
                self._device.write(self._page_table, slot, table.tobytes())
                self._written[slot] = table[:]
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
    """The inputs as arrays, rows first."""

    def __init__(self, runner: Runner) -> None:
        self._device, self._inputs, self._n_states = runner.device, runner.inputs, runner.n_states
        device, i = runner.device, runner.inputs
        view = device.view
        self.n_rows, self.n_out, self.n_count = (view(r.counter) for r in (i.rows, i.out_rows, i.count_rows))
        self.tokens = np.zeros(runner.n_batch, np.int32)
        self.positions, self.row_seq = view(i.positions), view(i.row_seq)
        self.row_cell, self.out_index = view(i.row_cell), view(i.out_index)
        self.parents, self.seq_past = view(i.parents), view(i.seq_past)
        self.groups = [GroupArrays(device, g) for g in runner.group_inputs]
        self.entries = [EntryArrays(device, e) for e in runner.entry_inputs.values()]
        if runner.state_inputs is not None:
            self.seq_slot, self.out_slots = view(runner.state_inputs.seq_slot), view(runner.state_inputs.out_slots)
        self.sample_rows = view(i.sample_rows).view(SAMPLE_ROW)
        self.sample_position = self.sample_rows["position"]
        self.bias_ids, self.bias_values = view(i.bias_ids), view(i.bias_values)
        self.state_slots = view(i.state_slots)
        self.count_slots, self.count_tokens = view(i.count_slots), view(i.count_tokens)
        self.count_amount = view(i.count_amount)
        self._rows_of_slots = np.zeros(runner.n_seqs, SAMPLE_ROW)  # but for the position

    def fill(self, plan: Plan) -> list[Chunk]:
        """Writes the inputs; gives the chunks that draw a token, in order."""
        drawing: list[Chunk] = []
        begin = 0
        for chunk in plan.chunks:
            s, n = chunk.sequence, len(chunk.tokens)
            end = begin + n
            if chunk.fresh:
                self._start(s)
            if n == 1:  # as in most steps: an item takes a fifth of the time of a slice
                self.tokens[begin], self.row_seq[begin] = chunk.tokens[0], s.slot
                self.positions[begin] = self.row_cell[begin] = chunk.position
            else:
                self.tokens[begin:end], self.row_seq[begin:end] = chunk.tokens, s.slot
                self.positions[begin:end] = chunk.positions
                self.row_cell[begin:end] = range(chunk.position, chunk.position + n)
            if self._n_states:
                self.seq_slot[s.slot] = chunk.source
                self.out_slots[begin:end] = -1
                for i, slot in chunk.stores:
                    self.out_slots[begin + i] = slot
            if chunk.n_out:
                m = len(drawing)
                self.out_index[m], self.state_slots[m] = end - 1, s.slot
                self.sample_rows[m] = self._rows_of_slots[s.slot]
                self.sample_position[m] = chunk.position + n
                drawing.append(chunk)
            begin = end
        for g, group in enumerate(self.groups):
            group.fill(g, plan.chunks)
        for entries in self.entries:
            entries.fill(plan.chunks, self.positions[: plan.n_rows])
        if self.tokens[0] != UNKNOWN:
            self._device.write(self._inputs.tokens, 0, self.tokens[: plan.n_rows].tobytes())
        self.n_rows[0], self.n_out[0] = plan.n_rows, plan.n_out
        return drawing

    def _start(self, s: Sequence) -> None:
        """What stays the same as long as it has its slot."""
        p, stop = s.sampling, s.stop_ids
        state = np.array((len(s.tokens), s.n_left, 0, len(stop), 0, 0), ROW_STATE)
        self._device.write(self._inputs.row_state, s.slot, state.tobytes())
        if stop:
            self._device.write(self._inputs.stop_ids, s.slot, np.array(stop, np.int32).tobytes())
        begin = s.slot * MAX_BIAS
        end = begin + len(p.logit_bias)
        self.bias_ids[begin:end] = list(p.logit_bias)
        self.bias_values[begin:end] = list(p.logit_bias.values())
        self._rows_of_slots[s.slot] = (
            p.seed, 0, s.choice, s.slot if s.is_penalised else -1, -1, 0, begin, end, -1,
            p.temperature, p.top_k, p.typical_p, p.top_p, p.min_p,
            p.repetition_penalty, p.frequency_penalty, p.presence_penalty, max(p.n_logprobs, 0), 0,
        )  # fmt: skip

    def fill_tree(self, chunks: Iterable[Chunk]) -> None:
        """Which rows the rows of a step come after."""
        begin = 0
        for chunk in chunks:
            n = len(chunk.tokens)
            parents = np.array(chunk.parents or range(-1, n - 1), np.int32)
            self.parents[begin : begin + n] = np.where(parents < 0, -1, begin + parents)
            self.seq_past[chunk.sequence.slot] = chunk.position
            begin += n
