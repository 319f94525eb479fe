"""A resident model: a plan becomes buffers, one run of the tape, and the tokens that it emitted.

A step whose rows go on from the last one's can be launched before that one is read: it finds its tokens on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from luced import ops
from luced.device.abi import FaultCode
from luced.device.device import Device, Program
from luced.device.values import Call
from luced.engine import pools
from luced.engine.arrays import Arrays
from luced.engine.inputs import MAX_COPIES, MAX_COUNTS, ROW_STATE, EntryInputs, GroupInputs, Inputs, StateInputs
from luced.engine.plan import BROKEN, Chunk, Emitted, GroupSpec, Plan
from luced.engine.pooling import Pooler
from luced.errors import EngineError
from luced.link import MAX_LOGPROBS
from luced.models.blocks import Batch, head, hidden
from luced.models.spec import Spec
from luced.models.weights import Weights
from luced.tape import Tape

STEP = ("input", "output", "table", "host")  # kinds of storages of what a step is told and tells


class Limits(NamedTuple):
    """Sizes that are fixed when a model is loaded."""

    n_ctx: int
    n_batch: int  # rows of a step
    n_seqs: int  # sequences of a step
    page_size: int  # cells of a page
    kv_type: str
    n_states: int  # slots of recurrent states


class Runner:
    """Implements plan.Model. Recorded first, so that its memory is known before any is taken; then given memory."""

    def __init__(
        self,
        device: Device,
        spec: Spec,
        module: Any,
        weights: Weights,
        groups: tuple[GroupSpec, ...],
        limits: Limits,
        capabilities: frozenset[str],
    ) -> None:
        """Records the tapes. ModelError, ShapeError: the file's tensors do not make this architecture."""
        self.device, self.spec, self.weights, self.groups = device, spec, weights, groups
        self.architecture, self.n_vocab = spec.architecture, spec.n_vocab
        self.n_ctx, self.n_batch, self.n_seqs, self.page_size, self.kv_type, self.n_states = limits
        self.memory: dict[str, int] = {}
        self.runs_ahead = device.runs_ahead and not self.n_states  # from which a row too many cannot be taken out
        self._held: list[Any] = []
        self._pooler = Pooler()
        self._n_counted: dict[int, int] = {}  # by slot: generated tokens in its row of counts
        self._launched: deque[tuple[Program, Plan, list[Chunk]]] = deque()  # and not read
        i = self.inputs = Inputs(self.n_batch, self.n_seqs, self.n_vocab)
        self.entry_inputs = {r: EntryInputs(r, self.n_seqs, i.rows) for r in sorted({g.ratio for g in groups} - {1})}
        self.group_inputs = [
            GroupInputs(g, self.page_size, self.n_ctx, self.n_seqs, i.rows, self.entry_inputs.get(g.ratio))
            for g in groups
        ]
        self.state_inputs = StateInputs(self.n_seqs, i.rows) if spec.recurrent else None
        caches = pools.caches(spec, groups, self.group_inputs, i, self.page_size, self.kv_type)
        self.states = pools.states(spec, self.state_inputs, i, self.n_states)

        self.tape = Tape()
        batch = Batch(i.tokens, i.positions, i.out_index, pools.by_layer(spec, caches), self.states, caches)
        x = module.build(self.tape, spec, weights, batch)
        self.n_body = len(self.tape.calls)
        self.capabilities, self.pooling = capabilities, spec.pooling
        self.hidden = self.tape.keep(hidden(self.tape, spec, weights, x)) if "embed" in capabilities else None
        self.n_hidden = len(self.tape.calls)
        self.logits = self.tape.keep(head(self.tape, spec, weights, batch, x))
        self.n_forward = len(self.tape.calls)
        self.tree_tape = Tape([i.in_tree(call) for call in self._forward])
        self.drawn = ops.sample(
            self.tape, self.logits, i.sample_rows, i.counts, i.bias_ids, i.bias_values, MAX_LOGPROBS
        )  # fmt: skip
        ops.advance(self.tape, self.drawn.token, i.state_slots, i.row_state, i.stop_ids, i.forced, i.emitted)

        self.count_tape = Tape()
        ops.count(self.count_tape, i.counts, i.count_slots, i.count_tokens, i.count_amount)
        self.copy_tapes = []
        for group, inputs in zip(spec.groups, self.group_inputs, strict=True):
            tape = Tape()
            for cache in caches[group.name].values():
                ops.kv_copy(tape, inputs.copies, cache)
            self.copy_tapes.append(tape)

    # ---- memory ----

    @property
    def tapes(self) -> list[Tape]:
        return [self.tape, self.tree_tape, self.count_tape, *self.copy_tapes]

    @property
    def recorded(self) -> list[list[Call]]:
        """The calls of each program: a step, one of which all hidden states are wanted, counting, copies by group."""
        calls = self.tape.calls
        step = calls[: self.n_body] + calls[self.n_hidden :]
        return [step, calls, self.count_tape.calls, *(tape.calls for tape in self.copy_tapes)]

    def allocate(self) -> Iterator[None]:
        """Takes memory for all but the weights, which are in place, and compiles, in slices: others may have steps
        between them. ModelError: no kernel for a type."""
        for kinds, grows in ((("constant", *STEP), False), (("cache",), True)):
            storages = dict.fromkeys(s for t in self.tapes for s in t.storages(*kinds))
            self._held.append(self.device.allocate(list(storages), grows=grows))
        offsets, _ = self.tape.plan_activations()
        self._held.append(self.device.allocate(list(offsets), list(offsets.values())))
        (step, pooled, count, *copies), i, drawn = self.recorded, self.inputs, self.drawn
        outputs = [i.emitted, i.row_state, drawn.logprob, drawn.top_ids, drawn.top_logprobs]
        self.program = self.device.compile(step, outputs)
        yield
        self.pooled_program = self.device.compile(pooled, [*outputs, self.hidden] if self.hidden else outputs)
        yield
        self.count_program = self.device.compile(count)
        self.copy_programs = [self.device.compile(calls) for calls in copies]
        self.arrays = Arrays(self)
        for program in (self.program, self.pooled_program, self.count_program, *self.copy_programs):
            program.run()  # no rows: checks that there is a kernel for every call

    def hold(self, memory: Any) -> None:
        self._held.append(memory)

    def close(self) -> None:
        while self._launched:
            self.read()
        self._held.clear()
        self.weights.file.close()

    # ---- a step ----

    def launch(self, plan: Plan) -> None:
        """Begins a step. EngineError: the device failed."""
        self._copy(plan)
        drawing = self.arrays.fill(plan)
        self._count(plan)
        pools = self.hidden is not None and any(chunk.sequence.pooling for chunk in plan.chunks)
        program = self.pooled_program if pools else self.program
        program.start()
        self._launched.append((program, plan, drawing))

    def read(self) -> list[Emitted]:
        """Of the first step that was not read, one Emitted for each chunk that has a result.

        EngineError: the device failed.
        """
        program, plan, drawing = self._launched.popleft()
        tokens, states, logprob, top_ids, top_logprobs, *hidden = program.read()
        fault = program.take_fault()
        if fault not in (FaultCode.NONE, FaultCode.LOGITS):
            raise _lost(fault)
        finish = states.view(ROW_STATE)["finish"]
        emitted = []
        for m, (token, chunk) in enumerate(zip(tokens[: len(drawing)].tolist(), drawing, strict=True)):
            s = chunk.sequence
            # Only a row that luce_sample could not draw from has this logprob: its token means nothing.
            end = BROKEN if logprob[m] == -np.inf else int(finish[chunk.sequence.slot])
            n_top = s.sampling.n_logprobs
            if n_top < 0:
                emitted.append(Emitted(token, end))
                continue
            top = zip(top_ids[m, :n_top].tolist(), top_logprobs[m, :n_top].tolist(), strict=True)
            emitted.append(Emitted(token, end, float(logprob[m]), tuple(t for t in top if t[0] >= 0)))
        return self._pooler.merge(plan.chunks, emitted, hidden[0]) if hidden else emitted

    def step(self, plan: Plan) -> list[Emitted]:
        """launch() and read()."""
        self.launch(plan)
        return self.read()

    @property
    def _forward(self) -> list[Call]:
        """As far as the logits."""
        return self.tape.calls[: self.n_body] + self.tape.calls[self.n_hidden : self.n_forward]

    @cached_property
    def forward(self) -> Program:
        """The daemon never asks for it."""
        return self.device.compile(self._forward, [self.logits])

    @cached_property
    def forward_tree(self) -> Program:
        """The same for rows of draft trees."""
        return self.device.compile(self.tree_tape.calls, [self.logits])

    def forward_all(self, *chunks: Chunk) -> npt.NDArray[np.float32]:
        """Logits [n, n_vocab] of all rows of these chunks, at most n_seqs, without drawing."""
        n = sum(len(chunk.tokens) for chunk in chunks)
        self.arrays.fill(Plan(chunks, (), n, n))
        self.arrays.out_index[:n] = np.arange(n)
        program = self.forward
        if any(chunk.parents for chunk in chunks):
            self.arrays.fill_tree(chunks)
            program = self.forward_tree
        (logits,) = program.run()
        fault = program.take_fault()
        if fault:
            raise _lost(fault)
        return np.array(logits[:n], np.float32)

    def _copy(self, plan: Plan) -> None:
        if not any(plan.copies):
            return
        for copies, a, program in zip(plan.copies, self.arrays.groups, self.copy_programs, strict=True):
            for begin in range(0, len(copies), MAX_COPIES):
                some = copies[begin : begin + MAX_COPIES]
                a.copies[: len(some)] = some
                a.n_copies[0] = len(some)
                program.run()

    def _count(self, plan: Plan) -> None:
        """Brings the counts of penalised sequences up to date before they are drawn from."""
        entries: list[tuple[int, int, int]] = []
        for chunk in plan.chunks:
            s = chunk.sequence
            if not s.is_penalised:
                continue
            if chunk.fresh:
                entries.append((s.slot, -1, 0))
                entries += [(s.slot, token, 0) for token in s.tokens[: s.n_prompt]]
                self._n_counted[s.slot] = 0
            entries += [(s.slot, token, 1) for token in s.tokens[s.n_prompt + self._n_counted[s.slot] :]]
            self._n_counted[s.slot] = s.n_generated
        a = self.arrays
        for begin in range(0, len(entries), MAX_COUNTS):
            some = np.array(entries[begin : begin + MAX_COUNTS], np.int32)
            a.count_slots[: len(some)], a.count_tokens[: len(some)], a.count_amount[: len(some)] = some.T
            a.n_count[0] = len(some)
            self.count_program.run()


def _lost(fault: FaultCode) -> EngineError:
    return EngineError("engine_failed", f"the device reported a fault: {fault.name.lower()}")
