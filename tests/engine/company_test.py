"""Scheduler and runner together, on the CPU: an answer has the same tokens alone and in company, in chunks of any size,
from a warm cache and a cold one, and when it had to give its pages up half way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from luced.device.cpu import Cpu
from luced.engine import loader
from luced.engine.runner import Runner
from luced.engine.scheduler import Scheduler
from luced.link import Generate, Message, Sampling, Tokens

GOLDENS = Path(__file__).parents[1] / "models" / "goldens"
N_VOCAB = 96
SAMPLINGS = (
    Sampling(temperature=0, frequency_penalty=0.5, n_logprobs=0),
    Sampling(temperature=1, seed=7),
    Sampling(temperature=2, seed=11, repetition_penalty=1.3, presence_penalty=0.2),
    Sampling(temperature=1, seed=7, logit_bias={5: 2.0, 9: -50.0}),
)


def requests() -> list[Generate]:
    def prompt(n: int, first: int) -> list[int]:
        return [(first + 7 * i * i + 3 * i) % N_VOCAB for i in range(n)]

    shared = prompt(50, 1)
    return [
        Generate(
            id=i,
            model="m",
            prompt=[*shared[: 50 - 9 * (i % 3)], *prompt(5 + 4 * i, i)],
            sampling=SAMPLINGS[i % len(SAMPLINGS)],
            stop_ids=[N_VOCAB - 1],
            max_tokens=40,
            n=1 + i % 2,
            client=i % 3,
        )
        for i in range(8)
    ]


def answers(scheduler: Scheduler, runner: Runner, generates: list[Generate]) -> dict[tuple[int, int], list[int]]:
    for generate in generates:
        scheduler.submit(generate, 0)
    messages: list[Message] = []
    while plan := scheduler.plan(0):
        messages += scheduler.commit(plan, runner.step(plan), 0)
    said: dict[tuple[int, int], list[int]] = {}
    for message in messages:
        if isinstance(message, Tokens):
            said.setdefault((message.id, message.choice), []).extend(message.tokens)
    return said


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    device = Cpu(n_threads=2)
    loading = loader.load(GOLDENS / f"{request.param}.gguf", device)
    while True:
        try:
            next(loading)
        except StopIteration as end:
            runner: Runner = end.value
            break
    yield runner
    runner.close()
    device.close()


@pytest.fixture(scope="module")
def alone(runner: Runner) -> dict[tuple[int, int], list[int]]:
    """Each request with a cold cache and nobody else."""
    said: dict[tuple[int, int], list[int]] = {}
    for generate in requests():
        said |= answers(Scheduler(runner), runner, [generate])
    return said


def test_the_requests_differ(alone: dict[tuple[int, int], list[int]]) -> None:
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone) == 12


def test_in_company_and_warm(runner: Runner, alone: dict[tuple[int, int], list[int]]) -> None:
    scheduler = Scheduler(runner)
    assert answers(scheduler, runner, requests()) == alone
    assert answers(scheduler, runner, requests()) == alone
    assert scheduler.n_cached > 300


@pytest.mark.parametrize("n_batch", [7, 24])
def test_in_small_chunks(
    runner: Runner, alone: dict[tuple[int, int], list[int]], n_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "n_batch", n_batch)
    assert answers(Scheduler(runner), runner, requests()) == alone


def test_with_few_pages(
    runner: Runner, alone: dict[tuple[int, int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "n_batch", 24)
    monkeypatch.setattr(runner, "groups", tuple(replace(group, n_pages=8) for group in runner.groups))
    scheduler = Scheduler(runner)
    assert answers(scheduler, runner, requests()) == alone
    assert scheduler.n_preempted > 0
    assert scheduler.cache.prefix.n_evicted > 0
