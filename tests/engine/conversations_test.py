"""Conversations on a hybrid model, interleaved and some of them cancelled: each has the tokens that it has alone.

Every slot of recurrent state holds NaN before the model is used, and there are fewer than there are messages: what is
read must have been written by the same conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from luced.device.cpu import Cpu
from luced.engine import loader
from luced.engine.runner import Runner
from luced.engine.scheduler import Scheduler
from luced.link import Generate, Sampling, Tokens
from tests.engine.company_test import N_VOCAB, answers

GOLDENS = Path(__file__).parents[1] / "models" / "goldens"
N_CONVERSATIONS, N_TURNS, N_STATES = 20, 3, 26
SYSTEM = [(5 * i + 2) % N_VOCAB for i in range(21)]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    device = Cpu(n_threads=2)
    loading = loader.load(GOLDENS / "qwen35.gguf", device)
    while True:
        try:
            next(loading)
        except StopIteration as end:
            runner: Runner = end.value
            break
    runner.n_states = N_STATES
    poison(runner)
    yield runner
    runner.close()
    device.close()


def poison(runner: Runner) -> None:
    for state in runner.states.values():
        runner.device.view(state.conv)[...] = np.nan
        runner.device.view(state.delta)[...] = np.nan


class Conversation:
    """What is said, turn by turn."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens = list(SYSTEM)
        self.boundaries = [len(SYSTEM)]
        self.said: list[list[int]] = []

    def ask(self) -> Generate:
        turn = len(self.said)
        self.tokens += [(self.number * 7 + turn * 3 + i * i) % N_VOCAB for i in range(9 + self.number % 5)]
        self.boundaries.append(len(self.tokens))
        return Generate(
            id=self.number * 100 + turn,
            model="m",
            prompt=[*self.tokens, 1, 2],  # the answer's beginning
            sampling=Sampling(temperature=1, seed=self.number),
            stop_ids=[N_VOCAB - 1],
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
        conversation = Conversation(number)
        for _ in range(N_TURNS):
            generate = conversation.ask()
            poison(runner)
            conversation.hear(answers(Scheduler(runner), runner, [generate])[generate.id, 0])
        found.append(conversation.said)
    return found


def test_interleaved_with_cancels(runner: Runner) -> None:
    expected = alone(runner)
    assert len({tuple(turn) for said in expected for turn in said}) == N_CONVERSATIONS * N_TURNS
    poison(runner)
    scheduler = Scheduler(runner)
    random = np.random.default_rng(4)
    talking = [Conversation(number) for number in range(N_CONVERSATIONS)]
    asked: dict[int, tuple[Conversation, Generate]] = {}
    heard: dict[int, list[int]] = {}
    n_cancelled = 0
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
        plan = scheduler.plan(0)
        for message in scheduler.commit(plan, runner.step(plan), 0) if plan else ():
            if isinstance(message, Tokens):
                heard.setdefault(message.id, []).extend(message.tokens)
        for request_id in [request_id for request_id in asked if request_id not in scheduler.requests]:
            conversation, _ = asked.pop(request_id)
            conversation.hear(heard[request_id])
            assert conversation.said == expected[conversation.number][: len(conversation.said)]
            if len(conversation.said) < N_TURNS:
                talking.append(conversation)
    assert n_cancelled > 10
    assert scheduler.n_cached > 1000
    assert scheduler.cache.checkpoints is not None
    assert scheduler.cache.checkpoints.n_evicted > 0


def test_the_next_turn_goes_on_from_the_last_message(runner: Runner) -> None:
    scheduler, conversation = Scheduler(runner), Conversation(3)
    generate = conversation.ask()
    conversation.hear(answers(scheduler, runner, [generate])[generate.id, 0])
    n_before = len(conversation.tokens) - 1  # the answer's last token was drawn, not read
    answers(scheduler, runner, [conversation.ask()])
    assert scheduler.n_cached == n_before


def test_choices_share_the_prompt(runner: Runner) -> None:
    scheduler = Scheduler(runner)
    generate = Conversation(4).ask()
    several = Generate(**{**vars(generate), "n": 3})
    answers(scheduler, runner, [several])
    assert scheduler.n_rows == len(generate.prompt) + 2 + 3 * 10
