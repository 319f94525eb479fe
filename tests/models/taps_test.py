"""What enters each layer of a tiny model is what enters HF's: where logits differ, this names the first layer that
errs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from luced.device.values import Value
from luced.engine.offline import chunk_of, plan_of, resident, sequence_of
from luced.engine.runner import Runner
from tests import hfgguf
from tests.models.cases import CASES, make, tokens

torch = pytest.importorskip("torch")
DENSE = ("llama", "qwen2", "qwen3", "qwen35", "qwen35_untied", "gemma2", "gemma3", "gemma4", "gemma4_e")
EXPERTS = ("qwen3moe", "qwen35moe", "qwen3next", "gemma4_moe")


def taps(runner: Runner, ids: list[int]) -> Iterator[NDArray[np.float32]]:
    """[n, E] before each layer, which is what the norm of its attention reads; then the normed output of the last."""
    runner.fill(plan_of(chunk_of(runner, sequence_of(runner, ids), 0, len(ids))))
    assert runner.hidden is not None
    for call in runner.tape.calls:
        weight, x = call.args.get("weight"), call.args.get("x")
        if isinstance(weight, Value) and isinstance(x, Value) and weight.name.endswith(".attn_norm.weight"):
            yield runner.device.view(x)[: len(ids)].reshape(len(ids), -1)
        runner.device.compile([call]).run()
        if call.args.get("out") is runner.hidden:
            break
    yield runner.device.view(runner.hidden)[: len(ids)]


def hidden_states(model: Any, ids: list[int]) -> list[NDArray[Any]]:
    """The same of HF."""
    with torch.no_grad():
        states = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states
    return [state[0].numpy() for state in states]


@pytest.mark.parametrize("name", DENSE + EXPERTS)
def test_every_layer_is_given_what_hf_gives_it(name: str, tmp_path: Path) -> None:
    case, ids = CASES[name], tokens(CASES[name])
    model = make(case)
    path = hfgguf.export(model, tmp_path / "m.gguf", case.dtype, n_mtp=case.n_mtp)
    expected = hidden_states(model, ids)
    with resident(path, kv_type="f32", n_batch=len(ids)) as runner:
        for layer, (ours, theirs) in enumerate(zip(taps(runner, ids), expected, strict=True)):
            error = np.abs(ours - theirs).max() / np.abs(theirs).max()
            assert error <= case.tolerance, f"before layer {layer}: {error:.2e}"
