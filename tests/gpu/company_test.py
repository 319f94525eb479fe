"""16 mixed prompts on a CUDA device, at T = 0 and T = 1: an answer has the same tokens alone and read step by step, in
company, from a warm cache, in small chunks, and cut off by a stop id that the host reads late. What
tests/engine/company_test.py and ahead_test.py ask of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from luced.engine.offline import resident
from luced.engine.runner import Runner
from luced.engine.scheduler import Scheduler
from luced.errors import ModelError
from luced.link import Generate, Sampling
from tests.engine.company_test import Said, answers
from tests.models.cases import GOLDENS
from tests.models.real import find_smollm2

pytestmark = pytest.mark.gpu
N_REQUESTS = 16


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3", "smollm2"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    path = find_smollm2() if request.param == "smollm2" else GOLDENS / f"{request.param}.gguf"
    try:
        with resident(path, device="cuda") as runner:
            yield runner
    except ModelError as error:
        if error.name == "no_device":
            pytest.skip(error.message)
        raise


def requests(runner: Runner, temperature: float) -> list[Generate]:
    """Prompts of 3 to 93 tokens, half of them with the same beginning."""

    def prompt(n: int, first: int) -> list[int]:
        return [(first + 7 * j * j + 3 * j) % runner.n_vocab for j in range(n)]

    shared = prompt(40, 1)
    return [
        Generate(
            id=i,
            model="m",
            prompt=[*(shared if i % 2 else []), *prompt(3 + 3 * i, i)],
            sampling=Sampling(temperature=temperature, seed=i),
            stop_ids=[],
            max_tokens=24,
            client=i % 3,
        )
        for i in range(N_REQUESTS)
    ]


def alone(runner: Runner, generates: list[Generate]) -> Said:
    """Each request with a cold cache and nobody else."""
    said: Said = {}
    for generate in generates:
        said |= answers(Scheduler(runner), runner, [generate])
    return said


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_tokens(runner: Runner, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    generates = requests(runner, temperature)
    monkeypatch.setattr(runner, "runs_ahead", False)
    want = alone(runner, generates)
    monkeypatch.setattr(runner, "runs_ahead", True)
    assert len({tuple(tokens) for tokens in want.values()}) > N_REQUESTS // 2
    scheduler = Scheduler(runner)
    assert answers(scheduler, runner, generates) == want
    assert answers(scheduler, runner, generates) == want
    stops = [replace(g, stop_ids=[want[g.id, 0][8 + g.id % 8]]) for g in generates]
    cut = {key: tokens[: tokens.index(stops[key[0]].stop_ids[0]) + 1] for key, tokens in want.items()}
    assert answers(scheduler, runner, stops) == cut
    monkeypatch.setattr(runner, "n_batch", 24)
    assert answers(Scheduler(runner), runner, generates) == want
