"""Scheduler and runner together, on the CPU, for every case of every architecture: an answer has the same tokens and
the same bits of logprobs alone and in company, in chunks of any size, from a warm cache and a cold one, when it had to
give its pages up half way, and when its engine died half way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from luced.engine.offline import resident
from luced.engine.runner import Runner
from luced.engine.scheduler import Scheduler
from luced.engine.steps import Steps
from luced.link import Finished, Generate, Message, Sampling, Tokens
from tests.models.cases import CASES, GOLDENS

N_VOCAB = 96
SAMPLINGS = (
    Sampling(temperature=0, frequency_penalty=0.5, n_logprobs=0),
    Sampling(temperature=1, seed=7, n_logprobs=5),
    Sampling(temperature=2, seed=11, repetition_penalty=1.3, presence_penalty=0.2, n_logprobs=5),
    Sampling(temperature=1, seed=7, logit_bias={5: 2.0, 9: -50.0}, n_logprobs=5),
)

Said = dict[tuple[int, int], list[int]]
Heard = dict[tuple[int, int], list[tuple[int, Any]]]  # tokens and their logprobs


def requests(page_size: int) -> list[Generate]:
    """Whose prompts share more than a page, or just less."""

    def prompt(n: int, first: int) -> list[int]:
        return [(first + 7 * i * i + 3 * i) % N_VOCAB for i in range(n)]

    shared = prompt(page_size + 18, 1)
    return [
        Generate(
            id=i,
            model="m",
            prompt=[*shared[: len(shared) - 9 * (i % 3)], *prompt(5 + 4 * i, i)],
            sampling=SAMPLINGS[i % len(SAMPLINGS)],
            stop_ids=[N_VOCAB - 1],
            max_tokens=40,
            n=1 + i % 2,
            client=i % 3,
        )
        for i in range(8)
    ]


def run(scheduler: Scheduler, runner: Runner, generates: list[Generate], n_steps: int = 1 << 30) -> list[Message]:
    for generate in generates:
        scheduler.submit(generate, 0)
    messages: list[Message] = []
    steps = Steps(runner, scheduler)
    while n_steps and (said := steps.next(lambda: 0)) is not None:
        messages += said
        n_steps -= 1
    if steps.is_under_way:  # the engine dies
        runner.read()
    return messages


def tokens(messages: list[Message]) -> Said:
    said: Said = {}
    for message in messages:
        if isinstance(message, Tokens):
            said.setdefault((message.id, message.choice), []).extend(message.tokens)
    return said


def heard(messages: list[Message]) -> Heard:
    """What a client hears of each choice, to the bit."""
    said: Heard = {}
    for message in messages:
        if isinstance(message, Tokens):
            assert message.logprobs is not None
            said.setdefault((message.id, message.choice), []).extend(zip(message.tokens, message.logprobs, strict=True))
    return said


def answers(scheduler: Scheduler, runner: Runner, generates: list[Generate]) -> Said:
    return tokens(run(scheduler, runner, generates))


@pytest.fixture(scope="module", params=CASES)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with resident(GOLDENS / f"{request.param}.gguf", n_threads=2) as runner:
        yield runner


@pytest.fixture(params=["plain", "ahead"], autouse=True)
def ahead(request: pytest.FixtureRequest, runner: Runner) -> None:
    """Whether steps are launched before the last one is read."""
    runner.runs_ahead = request.param == "ahead" and not runner.n_states


@pytest.fixture(scope="module")
def alone(runner: Runner) -> Heard:
    """Each request with a cold cache and nobody else."""
    said: Heard = {}
    for generate in requests(runner.page_size):
        said |= heard(run(Scheduler(runner), runner, [generate]))
    return said


def test_the_requests_differ(alone: Heard) -> None:
    assert len({tuple(token for token, _ in said) for said in alone.values()}) == len(alone) == 12


def test_in_company_and_warm(runner: Runner, alone: Heard) -> None:
    scheduler = Scheduler(runner)
    assert heard(run(scheduler, runner, requests(runner.page_size))) == alone
    assert heard(run(scheduler, runner, requests(runner.page_size))) == alone
    assert scheduler.n_cached > 300


@pytest.mark.parametrize("n_batch", [7, 24])
def test_in_small_chunks(runner: Runner, alone: Heard, n_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "n_batch", n_batch)
    assert heard(run(Scheduler(runner), runner, requests(runner.page_size))) == alone


def test_with_few_pages(runner: Runner, alone: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "n_batch", 24)
    monkeypatch.setattr(runner, "groups", tuple(replace(group, n_pages=8) for group in runner.groups))
    scheduler = Scheduler(runner)
    assert heard(run(scheduler, runner, requests(runner.page_size))) == alone
    assert scheduler.n_preempted > 0
    assert scheduler.cache.prefix.n_evicted > 0


@pytest.mark.parametrize("n_steps", [1, 2, 9, 25, 44])
def test_resumed_in_another_engine(runner: Runner, alone: Heard, n_steps: int) -> None:
    """Each engine has so many steps until it dies, and 30 more each time."""
    messages: list[Message] = []
    left = requests(runner.page_size)
    while left:
        messages += run(Scheduler(runner), runner, left, n_steps)
        n_steps += 30
        said = tokens(messages)
        ended = {(m.id, m.choice) for m in messages if isinstance(m, Finished)}
        left = [
            replace(g, said=[None if (g.id, c) in ended else said.get((g.id, c), []) for c in range(g.n)])
            for g in left
            if any((g.id, c) not in ended for c in range(g.n))
        ]
    assert heard(messages) == alone
    assert {m.usage["n_generated"] for m in messages if isinstance(m, Finished)} == set(map(len, alone.values()))
