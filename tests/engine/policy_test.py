"""The whole policy under random arrivals, cancels, truncations and want of pages: every answer is as if alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from luced.engine import scheduler as scheduler_module
from luced.engine.cache import Cache
from luced.engine.checkpoints import Checkpoints
from luced.engine.plan import GroupSpec
from luced.engine.prefix import Node
from luced.engine.scheduler import Scheduler
from luced.engine.sequence import Sequence
from luced.engine.steps import Steps
from luced.errors import RequestError
from luced.link import Finished, Generate, Message, Progress, Sampling, Tokens
from tests.engine.fake import N_VOCAB, FakeModel, alone


def check_cache(cache: Cache, scheduler: Scheduler) -> None:
    """Every page is accounted for: users, tree, free list."""
    nodes = _nodes(cache.prefix)
    requests = [s for r in scheduler.requests.values() for s in r.sequences]
    sequences = list(dict.fromkeys([*requests, *scheduler._running.sequences]))  # who has ended may have a row still
    for g, pool in enumerate(cache.pools):
        users: Counter[int] = Counter()
        for sequence in sequences:
            users.update(page for page in (sequence.tables[g] if sequence.tables else ()) if page >= 0)
            users.update(src for group, src, _, _ in sequence.copies if group == g)
        cached = [node.pages[g] for node in nodes if node.pages[g] >= 0]
        assert len(cached) == len(set(cached)), "two nodes have one page"
        assert pool.n_users == [users[page] for page in range(pool.n_pages)]
        assert [page for page in range(pool.n_pages) if pool._cached[page]] == sorted(cached)
        assert pool.n_idle == sum(not users[page] for page in cached)
        assert sorted(pool._free) == [p for p in range(pool.n_pages) if not users[p] and p not in cached]
    for sequence in sequences:
        table = sequence.tables[0].tolist() if sequence.tables else []
        assert [node.pages[0] for node in sequence.path] == table[: len(sequence.path)]
        assert set(sequence.path) <= set(nodes)
    if cache.checkpoints is not None:
        check_states(cache.checkpoints, nodes, sequences)
    for node in nodes:
        assert node.pages[0] >= 0
        keys = sorted(node.children)
        assert not any(b[: len(a)] == a for a, b in pairwise(keys))
        assert not node.children or len(node.tokens) == cache.page_size


def check_states(checkpoints: Checkpoints, nodes: list[Node], sequences: list[Sequence]) -> None:
    """Every slot is accounted for: sequences, checkpoints, free list."""
    users: Counter[int] = Counter()
    for sequence in sequences:
        assert (sequence.state >= 0) == (sequence.slot >= 0)
        users.update({sequence.state, sequence.source} - {-1})
        assert not sequence.stored
    kept = [slot for node in nodes for slot in node.states.values()]
    pool = checkpoints.pool
    assert len(kept) == len(set(kept)), "two checkpoints have one slot"
    assert pool.n_users == [users[slot] for slot in range(pool.n_pages)]
    assert [slot for slot in range(pool.n_pages) if pool._cached[slot]] == sorted(kept)
    assert set(checkpoints._kept) == {(node, n) for node in nodes for n in node.states}
    assert all(0 < n <= len(node.tokens) for node in nodes for n in node.states)


def _nodes(prefix: Any) -> list[Node]:
    found, left = [], [child for root in prefix._roots.values() for child in root.children.values()]
    while left:
        node = left.pop()
        found.append(node)
        left += node.children.values()
    assert set(found) == set(prefix._nodes)
    return found


class Policy(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.n_submitted = 0
        self.generates: dict[int, Generate] = {}
        self.said: dict[tuple[int, int], list[int]] = {}
        self.finished: dict[tuple[int, int], Finished] = {}
        self.truncated: dict[tuple[int, int], int] = {}
        self.known: dict[int, int] = {}  # tokens, when the first choice that was open came to its engine
        self.restarted: set[int] = set()
        self.paused: set[int] = set()
        self.late: set[int] = set()  # paused while a step was under way

    @initialize(
        page_size=st.integers(1, 5),
        n_pages=st.integers(4, 24),
        window=st.sampled_from([0, 1, 2, 3, 5, 8]),
        n_window_pages=st.integers(0, 8),
        n_batch=st.integers(1, 24),
        n_seqs=st.integers(1, 5),
        chunk=st.integers(1, 8),
        n_states=st.sampled_from([0, 0, 2, 3, 5, 9]),
        ratio=st.sampled_from([1, 1, 2, 3]),
        runs_ahead=st.booleans(),
    )
    def open(
        self,
        page_size: int,
        n_pages: int,
        window: int,
        n_window_pages: int,
        n_batch: int,
        n_seqs: int,
        chunk: int,
        n_states: int,
        ratio: int,
        runs_ahead: bool,
    ) -> None:
        page_size *= ratio

        def windowed(name: str, window: int) -> GroupSpec:
            most = (window + page_size - 2) // page_size + 1
            return GroupSpec(name, most + 1 + n_window_pages, window)

        groups: tuple[GroupSpec, ...] = (GroupSpec("full", n_pages),)
        if ratio > 1:
            groups = GroupSpec("compressed", n_pages, 0, ratio), windowed("compressed_tokens", 2 * ratio)
        if window:
            groups += (windowed("swa", window),)
        scheduler_module.CHUNK = chunk
        self.shape = (groups, page_size, n_batch, n_seqs, 1 << 20, n_states, runs_ahead and not n_states)
        self.start()

    def start(self) -> None:
        self.model = FakeModel(*self.shape)
        self.scheduler = Scheduler(self.model)
        self.steps = Steps(self.model, self.scheduler)

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        earlier = [generate.prompt + self.said.get((i, 0), []) for i, generate in self.generates.items()]
        start = data.draw(st.sampled_from([[], *earlier]))
        start = start[: data.draw(st.integers(0, len(start)))]
        prompt = start + data.draw(st.lists(st.integers(0, 3), min_size=not start, max_size=12))
        self.n_submitted += 1
        generate = Generate(
            id=self.n_submitted,
            model="fake",
            prompt=prompt,
            sampling=Sampling(seed=data.draw(st.integers(0, 3))),
            stop_ids=data.draw(st.lists(st.integers(0, N_VOCAB - 1), max_size=3)),
            max_tokens=data.draw(st.integers(0, 12)),
            n=data.draw(st.sampled_from([1, 1, 1, 2, 3])),
            boundaries=data.draw(st.lists(st.integers(1, len(prompt)), max_size=4)),
            priority=data.draw(st.sampled_from(["interactive", "agent", "batch"])),
            tenant=data.draw(st.sampled_from(["a", "a", "a", "b"])),
            client=data.draw(st.integers(0, 3)),
        )
        n_tokens = len(prompt) + generate.max_tokens
        if n_tokens > self.scheduler.n_ctx:
            with pytest.raises(RequestError) as refused:
                self.scheduler.submit(generate, self.now)
            assert refused.value.name == "context_too_long"
            return
        self.scheduler.submit(generate, self.now)
        self.generates[generate.id] = generate
        self.known[generate.id] = len(prompt)
        self.paused.discard(generate.id)  # it was paused before it came, which is nothing

    @rule(n=st.integers(1, 6))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.now += 1
            messages = self.steps.next(lambda: self.now)
            if messages is None:
                return
            self.hear(messages)
            self.late.clear()

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(1, self.n_submitted + 1))
        self.scheduler.abandon(request_id)
        if any((request_id, c) not in self.finished for c in range(self._n(request_id))):
            self.generates.pop(request_id, None)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        said = [key for key, tokens in self.said.items() if tokens]
        if not said:
            return
        request_id, choice = data.draw(st.sampled_from(said))
        n_tokens = data.draw(st.integers(0, len(self.said[request_id, choice])))
        messages = self.scheduler.truncate(request_id, choice, n_tokens, self.now)
        if messages:
            self.truncated[request_id, choice] = n_tokens
        self.hear(messages)

    @rule(data=st.data(), keep_s=st.integers(0, 9))
    def pause(self, data: st.DataObject, keep_s: int) -> None:
        request_id = data.draw(st.integers(1, self.n_submitted + 1))
        self.scheduler.pause(request_id, self.now + keep_s)
        self.paused.add(request_id)
        if self.steps.is_under_way:
            self.late.add(request_id)

    @rule()
    def restart(self) -> None:
        """Another engine goes on where this one stands."""
        left = list(self.scheduler.requests)
        self.start()
        self.late.clear()
        for request_id in left:
            generate = self.generates[request_id]
            keys = [(request_id, choice) for choice in range(generate.n)]
            said = [None if key in self.finished else list(self.said.get(key, [])) for key in keys]
            self.scheduler.submit(replace(generate, said=said), self.now)
            self.known[request_id] = len(generate.prompt) + len(next(one for one in said if one is not None))
            self.restarted.add(request_id)
            if request_id in self.paused:
                self.scheduler.pause(request_id, self.now)

    @rule()
    def expire(self) -> None:
        until = self.scheduler.expire(self.now)
        assert until is None or until > self.now

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(1, self.n_submitted + 1))
        self.scheduler.resume(request_id)
        self.paused.discard(request_id)

    def _n(self, request_id: int) -> int:
        return self.generates[request_id].n if request_id in self.generates else 0

    def hear(self, messages: list[Message]) -> None:
        for message in messages:
            assert isinstance(message, Progress | Tokens | Finished)
            assert message.id in self.generates, "a word about a request that was abandoned"
            is_said = message.id not in self.paused or message.id in self.late or isinstance(message, Finished)
            assert is_said, "a step of a paused request"
            if isinstance(message, Tokens):
                assert (message.id, message.choice) not in self.finished
                self.said.setdefault((message.id, message.choice), []).extend(message.tokens)
            elif isinstance(message, Finished):
                assert (message.id, message.choice) not in self.finished
                self.finished[message.id, message.choice] = message
            else:
                assert message.n_total == self.known[message.id]
                assert message.n_cached <= message.n_done <= message.n_total

    @invariant()
    def pages_are_accounted_for(self) -> None:
        if hasattr(self, "scheduler"):
            check_cache(self.scheduler.cache, self.scheduler)
            self.check_under_way()

    def check_under_way(self) -> None:
        """What a step works with that is under way is nobody else's."""
        cache = self.scheduler.cache
        for chunk in self.model.under_way.chunks if self.steps.is_under_way else ():
            assert chunk.sequence.slot >= 0
            for group, pool, slots in zip(cache.groups, cache.pools, chunk.slots, strict=True):
                n_cells = cache.page_size // group.ratio
                assert all(pool.n_users[slot // n_cells] for slot in slots)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for request_id in self.paused:
            self.scheduler.resume(request_id)
        self.paused.clear()
        for _ in range(10_000):
            messages = self.steps.next(lambda: self.now)
            if messages is None:
                break
            self.hear(messages)
        assert not self.scheduler.requests
        for request_id, generate in self.generates.items():
            for choice in range(generate.n):
                self.check_answer(request_id, generate, choice)
        check_cache(self.scheduler.cache, self.scheduler)
        self.scheduler.cache.prefix.clear()
        assert all(pool.n_free == pool.n_pages for pool in self.scheduler.cache.pools)
        if (checkpoints := self.scheduler.cache.checkpoints) is not None:
            assert checkpoints.pool.n_free == checkpoints.pool.n_pages
        assert self.scheduler._running._slots.n_free == min(self.model.n_seqs, max(1, self.model.n_batch // 2))
        assert not any(clients._clients or clients._tenants for clients in self.scheduler.classes)

    def check_answer(self, request_id: int, generate: Generate, choice: int) -> None:
        tokens, reason = alone(self.model.groups, generate, choice, self.model.n_states > 0)
        finished, said = self.finished[request_id, choice], self.said.get((request_id, choice), [])
        if (request_id, choice) in self.truncated:
            assert finished.reason == "truncated"
            assert finished.usage["n_generated"] == self.truncated[request_id, choice]
            assert said == tokens[: len(said)]
        else:
            assert (said, finished.reason) == (tokens, reason)
            assert finished.usage["n_generated"] == len(tokens)
        assert finished.usage["n_prompt"] == len(generate.prompt)
        assert 0 <= finished.usage["n_cached"] < len(generate.prompt) + (request_id in self.restarted)


def test_every_answer_is_as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "CHUNK", scheduler_module.CHUNK)  # and back at the end
    run_state_machine_as_test(
        Policy,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            phases=[Phase.generate],  # to shrink a history takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
