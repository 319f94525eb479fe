"""Conversations on a model of each kind, interleaved, some of them cancelled, some broken off by an error, the engine
started anew now and then: each has the tokens that it has alone.

Every cell and every slot of recurrent state holds NaN before the model is used, and there are fewer than there are
messages: what is read must have been written by the same conversation, or by one with the same beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from luced.device.values import Value
from luced.engine.offline import resident
from luced.engine.plan import BROKEN, Emitted, Model
from luced.engine.runner import Runner
from luced.engine.scheduler import Scheduler
from luced.engine.steps import Steps
from luced.link import Failed, Generate, Sampling, Tokens
from tests.engine.company_test import N_VOCAB, answers
from tests.models.cases import CASES, GOLDENS

N_CONVERSATIONS, N_TURNS, N_STATES, N_PAGES = 20, 3, 26, 14


@pytest.fixture(scope="module", params=CASES)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with resident(GOLDENS / f"{request.param}.gguf", n_threads=2) as runner:
        if runner.n_states:
            runner.n_states = N_STATES
        else:
            runner.groups = tuple(replace(group, n_pages=min(group.n_pages, N_PAGES)) for group in runner.groups)
        poison(runner)
        yield runner


@pytest.fixture(params=["plain", "ahead"], autouse=True)
def ahead(request: pytest.FixtureRequest, runner: Runner) -> None:
    """Whether steps are launched before the last one is read."""
    runner.runs_ahead = request.param == "ahead" and not runner.n_states


class Breaking:
    """A model whose rows have no logits now and then."""

    def __init__(self, runner: Runner, random: np.random.Generator) -> None:
        self._runner, self._random = runner, random

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def read(self) -> list[Emitted]:
        emitted = self._runner.read()
        if emitted and self._random.random() < 0.1:
            emitted[int(self._random.integers(len(emitted)))] = Emitted(0, BROKEN)
        return emitted


def poison(runner: Runner) -> None:
    for s in dict.fromkeys(s for tape in runner.tapes for s in tape.storages("cache")):
        runner.device.view(Value(s.name, s, "U8", (s.n_bytes,), (1,)))[:] = 0xFF  # a NaN of every type


class Conversation:
    """What is said, turn by turn."""

    def __init__(self, number: int, page_size: int) -> None:
        """Its first message, which all have, ends within the first page; the others do not."""
        self.number = number
        self.tokens = [(5 * i + 2) % N_VOCAB for i in range(page_size - 11)]
        self.boundaries = [len(self.tokens)]
        self.said: list[list[int]] = []

    def ask(self) -> Generate:
        turn = len(self.said)
        self.tokens += [(self.number * 7 + turn * 3 + i * i) % N_VOCAB for i in range(9 + self.number % 5)]
        self.boundaries.append(len(self.tokens))
        return Generate(
            id=self.number * 100 + turn,
            model="m",
            prompt=[*self.tokens, 1, 2],  # the answer's beginning
            sampling=Sampling(temperature=2, seed=self.number),
            stop_ids=[],
            max_tokens=11,
            boundaries=list(self.boundaries),
            client=self.number % 3,
        )

    def hear(self, tokens: list[int]) -> None:
        self.said.append(tokens)
        self.tokens += [1, 2, *tokens]
        self.boundaries.append(len(self.tokens))


def alone(runner: Runner) -> list[list[list[int]]]:
    """Each turn from a cold cache."""
    found = []
    for number in range(N_CONVERSATIONS):
        conversation = Conversation(number, runner.page_size)
        for _ in range(N_TURNS):
            generate = conversation.ask()
            poison(runner)
            conversation.hear(answers(Scheduler(runner), runner, [generate])[generate.id, 0])
        found.append(conversation.said)
    return found


@pytest.fixture(scope="module")
def expected(runner: Runner) -> list[list[list[int]]]:
    return alone(runner)


def test_interleaved(runner: Runner, expected: list[list[list[int]]]) -> None:
    assert len({tuple(turn) for said in expected for turn in said}) > 0.9 * N_CONVERSATIONS * N_TURNS
    poison(runner)
    random = np.random.default_rng(4)
    model = cast(Model, Breaking(runner, random))
    scheduler = Scheduler(model)
    steps = Steps(model, scheduler)
    talking = [Conversation(number, runner.page_size) for number in range(N_CONVERSATIONS)]
    asked: dict[int, tuple[Conversation, Generate]] = {}
    heard: dict[int, list[int]] = {}
    n_cancelled = n_broken = n_restarts = n_cached = n_evicted = 0
    while talking or asked:
        if talking and random.random() < 0.5:
            conversation = talking.pop(int(random.integers(len(talking))))
            generate = conversation.ask()
            asked[generate.id] = conversation, generate
            scheduler.submit(generate, 0)
        if asked and random.random() < 0.2:  # whose client then asks again
            request_id = int(random.choice(list(asked)))
            scheduler.abandon(request_id)
            heard.pop(request_id, None)
            scheduler.submit(asked[request_id][1], 0)
            n_cancelled += 1
        if random.random() < 0.02:  # another engine goes on with what has been said
            n_cached, n_evicted = n_cached + scheduler.n_cached, n_evicted + lost(scheduler)
            if steps.is_under_way:
                model.read()
            scheduler = Scheduler(model)
            steps = Steps(model, scheduler)
            poison(runner)
            for request_id, (_, generate) in asked.items():
                scheduler.submit(replace(generate, said=[heard.get(request_id, [])]), 0)
            n_restarts += 1
        for message in steps.next(lambda: 0) or ():
            if isinstance(message, Tokens):
                heard.setdefault(message.id, []).extend(message.tokens)
            if isinstance(message, Failed):
                heard.pop(message.id, None)
                scheduler.submit(asked[message.id][1], 0)
                n_broken += 1
        for request_id in [request_id for request_id in asked if request_id not in scheduler.requests]:
            conversation, _ = asked.pop(request_id)
            conversation.hear(heard[request_id])
            assert conversation.said == expected[conversation.number][: len(conversation.said)]
            if len(conversation.said) < N_TURNS:
                talking.append(conversation)
    assert min(n_cancelled, n_broken, 10 * n_restarts) > 10
    assert n_cached + scheduler.n_cached > 1000
    assert n_evicted + lost(scheduler) > 0


def lost(scheduler: Scheduler) -> int:
    """Pages of the prefix cache, or of a model that has states those, which others had to have."""
    cache = scheduler.cache
    return cache.checkpoints.n_evicted if cache.checkpoints else cache.prefix.n_evicted


def test_the_next_turn_goes_on_from_the_last_message(runner: Runner) -> None:
    scheduler, conversation = Scheduler(runner), Conversation(3, runner.page_size)
    generate = conversation.ask()
    conversation.hear(answers(scheduler, runner, [generate])[generate.id, 0])
    n_before = len(conversation.tokens) - 1  # the answer's last token was drawn, not read
    answers(scheduler, runner, [conversation.ask()])
    assert scheduler.n_cached == n_before


def test_choices_share_the_prompt(runner: Runner) -> None:
    scheduler = Scheduler(runner)
    generate = Conversation(4, runner.page_size).ask()
    several = Generate(**{**vars(generate), "n": 3})
    answers(scheduler, runner, [several])
    assert scheduler.n_rows == len(generate.prompt) + 2 + 3 * 10
