"""Embeddings: HF is the authority; alone, in company and in chunks of any size the bits are the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from luced.device.cpu import Cpu
from luced.engine import loader
from luced.engine.offline import drain
from luced.engine.runner import Runner
from luced.engine.scheduler import Scheduler
from luced.link import Embedded, Finished, Generate, Message, Sampling, Tokens
from tests.models.cases import CASES, GOLDENS, make, tokens

N_VOCAB = 96
POOLINGS = ("mean", "last", "cls")


def embed(request_id: int, prompt: list[int], pooling: str) -> Generate:
    return Generate(request_id, "m", prompt, Sampling(), [], 0, pooling=pooling)


def answer(request_id: int) -> Generate:
    return Generate(request_id, "m", prompt(70, request_id), Sampling(temperature=0), [], 12)


def prompt(n: int, first: int) -> list[int]:
    return [(first + 7 * i * i + 3 * i) % N_VOCAB for i in range(n)]


def run(
    scheduler: Scheduler, runner: Runner, generates: list[Generate]
) -> tuple[dict[int, list[float]], list[Message]]:
    """(vectors by request, all that was said)."""
    for generate in generates:
        scheduler.submit(generate, 0)
    messages: list[Message] = []
    while plan := scheduler.plan(0):
        messages += scheduler.commit(plan, runner.step(plan), 0)
    return {m.id: m.vector for m in messages if isinstance(m, Embedded)}, messages


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runner(name: str) -> Iterator[Runner]:
    device = Cpu(n_threads=2)
    runner = drain(loader.load(GOLDENS / f"{name}.gguf", device, loader.Wants(kv_type="f32")))
    yield runner
    runner.close()
    device.close()


def hidden_of_hf(name: str) -> NDArray[np.float32]:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        output = make(CASES[name]).model(torch.tensor([tokens(CASES[name])]), use_cache=False)
    found: NDArray[np.float32] = output.last_hidden_state[0].float().numpy()
    return found


def test_against_hf(runner: Runner, name: str) -> None:
    hidden = hidden_of_hf(name)
    expected = {"mean": hidden.mean(0), "last": hidden[-1], "cls": hidden[0]}
    for pooling in POOLINGS:
        ours = np.array(run(Scheduler(runner), runner, [embed(1, tokens(CASES[name]), pooling)])[0][1])
        theirs = expected[pooling]
        error = np.abs(ours - theirs).max() / np.abs(theirs).max()
        assert error <= CASES[name].tolerance, pooling
        assert np.abs(ours * 1.01 - theirs).max() / np.abs(theirs).max() > CASES[name].tolerance


def test_company_chunks_and_cache_change_no_bit(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [embed(i, prompt(20 + 9 * i, i % 3), POOLINGS[i % 3]) for i in range(9)]
    alone: dict[int, list[float]] = {}
    for one in asked:
        alone |= run(Scheduler(runner), runner, [one])[0]
    assert len({tuple(vector) for vector in alone.values()}) >= 7  # cls depends on the first token alone
    said_alone = run(Scheduler(runner), runner, [answer(10)])[1]
    for n_batch in (512, 24, 7):
        monkeypatch.setattr(runner, "n_batch", n_batch)
        scheduler = Scheduler(runner)
        vectors, messages = run(scheduler, runner, [answer(10), *asked])
        assert vectors == alone, n_batch
        assert [m for m in messages if isinstance(m, Tokens)] == [m for m in said_alone if isinstance(m, Tokens)]
        again, messages = run(scheduler, runner, asked)
        assert again == alone
        cached = {m.id: m.usage["n_cached"] for m in messages if isinstance(m, Finished)}
        assert all(bool(n) == (asked[i].pooling == "last") for i, n in cached.items()), cached
