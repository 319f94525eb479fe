"""Which rows of which sequences the next step computes, and what follows from what it gave.

Pure policy: no device, no clock but the one passed in. In each step every sequence that decodes has one row, in order
of rank; what is left goes to prompts, class by class, client by client. Who ends while a step is under way that has a
row of it keeps its slot and its pages until that is committed; the row is for nobody.

When pages run out, the sequence of the worst rank gives its pages back and waits; its tokens stay, and the prefix
cache keeps what it can of its cells. The best one can always go on, so everything ends.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from luced.engine.cache import Cache
from luced.engine.fair import Clients
from luced.engine.plan import BROKEN, LENGTH, RUNNING, STOP, Chunk, Emitted, Model, Plan, begin
from luced.engine.running import Running
from luced.engine.sequence import CLASSES, Request, Sequence, check
from luced.errors import ModelError
from luced.link import Embedded, Failed, Finished, Generate, Message, Progress, Tokens

CHUNK = 64  # prompts are cut at absolute multiples of this, so that equal prompts give equal chunks
_served = attrgetter("served")
_REASONS = {STOP: "stop", LENGTH: "length"}


class Scheduler:
    """The requests of one model."""

    def __init__(self, model: Model) -> None:
        self.cache = Cache(model.groups, model.page_size, model.n_states)
        self.n_ctx = min(model.n_ctx, self.cache.n_cells)
        self.n_vocab = model.n_vocab
        self.n_batch = model.n_batch
        self.requests: dict[int, Request] = {}
        self.n_steps = self.n_rows = self.n_preempted = 0
        self.n_cached = 0  # prompt tokens that came from the cache
        self._running = Running(min(model.n_seqs, max(1, model.n_batch // 2)))  # so that prompts go on beside them
        self.classes = tuple(Clients() for _ in CLASSES)
        self._chunks: dict[Sequence, Chunk] = {}  # of the step that is being planned
        self._blocked: Sequence | None = None  # the next to start did not fit, and nothing has changed since
        self._tried = False  # in this plan, and nobody who is after it may start
        self._n_arrived = 0

    # ---- requests ----

    def submit(self, generate: Generate, now: float) -> None:
        """RequestError: it can never run."""
        check(generate, self.n_vocab, self.n_ctx)
        self._n_arrived += 1
        request = self.requests[generate.id] = Request(generate, self._n_arrived, now)
        for sequence in request.open:
            self.classes[sequence.priority].enter(sequence)
        self._enqueue(request.first)

    def abandon(self, request_id: int) -> None:
        """Frees all that it has. An id that is not known has ended already."""
        request = self.requests.get(request_id)
        for sequence in request.open if request else ():
            self._end(sequence)

    def truncate(self, request_id: int, choice: int, n_tokens: int, now: float) -> list[Message]:
        """The choice ends with its first n_tokens generated tokens. One that is not known has ended already."""
        request = self.requests.get(request_id)
        if request is None or request.sequences[choice].ended:
            return []
        sequence = request.sequences[choice]
        del sequence.tokens[sequence.n_prompt + n_tokens :]
        sequence.n_done = min(sequence.n_done, len(sequence.tokens))
        return [self._finish(sequence, "truncated", now)]

    def pause(self, request_id: int, keep_until_s: float) -> None:
        """No more rows for it. Its pages are the first to go where others need some, and go at keep_until_s."""
        if request := self.requests.get(request_id):
            self._running.set_paused(request, True)
            self._blocked, self._tried = None, False
            request.keep_until_s = keep_until_s
            for sequence in request.sequences:
                if sequence.queued:
                    self.classes[sequence.priority].unqueue(sequence)
                    sequence.held = True

    def resume(self, request_id: int) -> None:
        if request := self.requests.get(request_id):
            self._running.set_paused(request, False)
            for sequence in request.sequences:
                if sequence.held and not sequence.ended:
                    sequence.held = False
                    self._enqueue(sequence)

    def expire(self, now: float) -> float | None:
        """Takes the pages of those that have been paused for too long; when the next one will have been."""
        for sequence in self._running.paused():
            if sequence.request.keep_until_s <= now and not sequence.n_under_way:
                self._preempt(sequence)
        return min((s.request.keep_until_s for s in self._running.paused()), default=None)

    # ---- plan ----

    def plan(self, now: float) -> Plan | None:
        """The next step, when no other is under way; None: there is nothing to do."""
        chunks = self._chunks = {}
        self._tried = False
        for sequence in [s for s in self._running.sequences if not (s.queued or s.request.paused)]:
            if sequence.slot >= 0 and self._n_rows(sequence, 1):  # else a better one has taken its place
                self._add(sequence, 1)
        n_left = self.n_batch - len(chunks)
        if chunks:  # those that decode wait for the prompts in their step
            n_left = min(n_left, max(CHUNK, self.n_batch // 4))
        self._fill(n_left, now)
        if not chunks and self.has_work:  # who had rows was preempted by who then got none
            best = self._running.sequences[0]
            self._add(best, self._n_rows(best, min(len(best.tokens) - best.n_done, self.n_batch)))
        if not chunks:
            return None
        copies: tuple[list[tuple[int, int, int]], ...] = tuple([] for _ in self.cache.groups)
        for sequence in chunks:
            for g, src, dst, n_cells in sequence.copies:
                copies[g].append((src, dst, n_cells))
        return begin(tuple(chunks.values()), copies)

    def _fill(self, n_left: int, now: float) -> None:
        """Adds n_left rows of prompts: of the best class first, and in it in turn (Clients)."""
        has_prompts = False
        for clients in self.classes:
            turn = clients.waiting()
            while turn and n_left:
                client = min(turn, key=_served)
                sequence = client.next
                n_rows = 0
                if sequence.slot >= 0 or self._start(sequence, now):
                    n_rows = self._n_rows(sequence, sequence.chunk_rows(n_left, CHUNK, has_prompts))
                if n_rows:
                    self._add(sequence, n_rows)
                    n_left -= n_rows
                    has_prompts = True
                if not client.queue or client.next is sequence:  # a sequence has one chunk in a step
                    turn.remove(client)

    def _add(self, sequence: Sequence, n_rows: int) -> None:
        begin, end = sequence.n_done, sequence.n_done + n_rows
        slots = self.cache.extend(sequence, n_rows)
        clients = self.classes[sequence.priority]
        clients.charge(sequence, n_rows)
        n_out = 0
        if end == len(sequence.tokens):
            n_out = int(sequence.n_left > 0)
            if sequence.queued:
                clients.unqueue(sequence)
        stores = self.cache.stores(sequence, n_rows)
        self._chunks[sequence] = Chunk(
            sequence, sequence.tokens[begin:end], begin, slots, n_out, sequence.is_fresh, sequence.source, stores
        )

    def _n_rows(self, sequence: Sequence, n: int) -> int:
        """As many of its next n rows as there are pages for, once those of worse rank have made room."""
        while (n_rows := self.cache.n_rows(sequence, n)) < n and self._running.worst is not sequence:
            self._preempt(self._running.worst)
        return n_rows

    def _start(self, sequence: Sequence, now: float) -> bool:
        """Gives it a slot and page tables. False: it must wait for others to end."""
        if self._tried or self._blocked is sequence:
            self._tried = True
            return False
        while self._running.is_full or not self.cache.start(sequence, self._running.sequences):
            victim = self._running.victim(sequence)
            if victim is None:
                self._blocked, self._tried = sequence, True
                return False
            self._preempt(victim)
        self._running.add(sequence)
        if sequence.n_cached < 0:
            sequence.n_cached = sequence.n_done
            sequence.started_s = now
            self.n_cached += sequence.n_done
        sequence.n_cached = min(sequence.n_cached, sequence.n_done)  # less, if it must do again what had been cached
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._chunks.pop(victim, None)
        self._stop(victim)
        if not victim.queued:
            self._enqueue(victim)
        self.n_preempted += 1

    # ---- commit ----

    def commit(self, plan: Plan, emitted: list[Emitted], now: float) -> list[Message]:
        """Takes in what a step gave: what to tell the front."""
        messages: list[Message] = []
        results = iter(emitted)
        self.n_steps += 1
        self.n_rows += plan.n_rows
        for chunk in plan.chunks:
            sequence = chunk.sequence
            result = next(results) if chunk.has_result else None
            sequence.n_under_way -= 1
            if sequence.ended:  # while this step was under way, or in it: another choice of its request broke
                if not sequence.n_under_way:
                    self._stop(sequence)
                continue
            sequence.is_fresh = False
            self.cache.ran(sequence, len(chunk.tokens))
            if not sequence.has_spoken:
                messages += self._prefilled(sequence, now)
            if result:
                messages += self._emit(sequence, result, now)
            elif not sequence.max_tokens and sequence.n_done == sequence.n_prompt:
                messages.append(self._finish(sequence, "length", now))
        return messages

    def _prefilled(self, sequence: Sequence, now: float) -> list[Message]:
        """More of what it came with is done; when the prompt is, the other choices may start."""
        request, n_done, n_known = sequence.request, sequence.n_done, sequence.n_known
        if n_done == n_known:
            sequence.first_token_s = now
        if sequence is not request.first:
            return []
        if n_done >= sequence.n_prompt:
            self._release(request)
        return [Progress(request.id, n_done, n_known, sequence.n_cached)]

    def _release(self, request: Request) -> None:
        """Lets the choices go that wait for the first one."""
        for sequence in request.waits:
            self._enqueue(sequence)
        request.waits.clear()

    def _emit(self, sequence: Sequence, emitted: Emitted, now: float) -> list[Message]:
        if emitted.finish == BROKEN:
            error = ModelError("bad_model_file", "the model's logits are not numbers: its weights must be damaged")
            self.cache.distrust(sequence.request.sequences)
            self.abandon(sequence.request.id)
            return [Failed(sequence.request.id, error.to_wire())]
        if emitted.vector is not None:
            return [Embedded(sequence.request.id, emitted.vector), self._finish(sequence, "length", now)]
        sequence.tokens.append(emitted.token)
        is_asked = sequence.sampling.n_logprobs >= 0
        logprobs = [[emitted.logprob, [list(one) for one in emitted.top]]] if is_asked else None
        said = Tokens(sequence.request.id, sequence.choice, [emitted.token], logprobs)
        return [said] if emitted.finish == RUNNING else [said, self._finish(sequence, _REASONS[emitted.finish], now)]

    def _finish(self, sequence: Sequence, reason: str, now: float) -> Finished:
        usage, timings = sequence.usage(), sequence.timings(now)
        self._end(sequence)
        return Finished(sequence.request.id, sequence.choice, reason, usage, timings)

    # ---- sequences ----

    def _enqueue(self, sequence: Sequence) -> None:
        if sequence.request.paused:
            sequence.held = True
            return
        self.classes[sequence.priority].queue(sequence)
        self._blocked, self._tried = None, False

    def _stop(self, sequence: Sequence) -> None:
        """Its slot and its pages are for others."""
        self._running.remove(sequence)
        self.cache.release(sequence)
        self._blocked, self._tried = None, False

    def _end(self, sequence: Sequence) -> None:
        sequence.ended = True
        if sequence.slot >= 0 and not sequence.n_under_way:
            self._stop(sequence)
        self.classes[sequence.priority].leave(sequence)
        request = sequence.request
        if sequence is request.first:
            self._release(request)
        request.n_open -= 1
        if not request.n_open:
            del self.requests[request.id]

    # ---- what it is doing ----

    @property
    def has_work(self) -> bool:
        return any(not request.paused for request in self.requests.values())

    def waiting(self) -> list[int]:
        """Requests that have not started, in the order in which they would as things stand."""
        return [request_id for clients in self.classes for request_id in clients.order()]

    def state(self, now: float) -> dict[str, Any]:
        """Counters, and each request's phase (queue | prefill | decode), prompt and generated tokens, and age."""
        return {
            "n_steps": self.n_steps,
            "n_rows": self.n_rows,
            "n_cached": self.n_cached,
            "n_preempted": self.n_preempted,
            **self.cache.state(),
            "requests": [request.state(now) for request in self.requests.values()],
        }
