"""SmolLM2 on a CUDA device and on the CPU: the same greedy tokens, up to a near-tie (tests/models/greedy_test.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from luced.engine.offline import logits, resident
from luced.engine.scheduler import Scheduler
from luced.errors import ModelError
from luced.gguf.reader import open_gguf
from luced.link import Generate, Sampling
from luced.text.tokenizer import load_tokenizer
from tests.engine.company_test import answers
from tests.models.real import N_TOKENS, PROMPTS, find_smollm2, in_f32

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def prompts_of(path: Path) -> list[list[int]]:
    file = open_gguf(path)
    try:
        tokenizer = load_tokenizer(file.metadata)
    finally:
        file.close()
    return [tokenizer.encode(prompt, True, True) for prompt in PROMPTS]


def greedy(path: Path, prompts: list[list[int]], device: str) -> list[list[int]]:
    """Answers to all prompts, in company."""
    try:
        with resident(path, device=device, kv_type="f32") as runner:
            said = answers(
                Scheduler(runner),
                runner,
                [
                    Generate(i, "m", prompt, Sampling(temperature=0), [], N_TOKENS, client=i)
                    for i, prompt in enumerate(prompts)
                ],
            )
    except ModelError as error:
        if error.name == "no_device":
            pytest.skip(error.message)
        raise
    return [said[i, 0] for i in range(len(prompts))]


@pytest.mark.parametrize(("weights", "near_tie"), [("F32", 1e-3), ("Q4_1", 0.75)])
def test_greedy_tokens_of_the_cpu(weights: str, near_tie: float, tmp_path: Path) -> None:
    path = find_smollm2()
    prompts = prompts_of(path)
    if weights == "F32":
        path = in_f32(path, tmp_path / "smollm2-f32.gguf")
    ours, theirs = greedy(path, prompts, "cuda"), greedy(path, prompts, "cpu")
    for prompt, mine, other in zip(prompts, ours, theirs, strict=True):
        assert len(mine) == len(other) == N_TOKENS
        parted = np.flatnonzero(np.array(mine) != other)
        if len(parted):
            at = int(parted[0])
            row = logits(path, prompt + other[:at])[-1]
            print(f"{weights}: parted at token {at}, {row.max() - row[mine[at]]:.4f} below the largest logit")
            assert row.max() - row[mine[at]] <= near_tie
