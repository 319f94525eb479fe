"""The second scale of a matrix, as NVFP4 files have it beside their blocks: `X.scale`, of each expert its own."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from luced.engine.offline import logits
from luced.errors import ModelError
from tests.models.cases import GOLDENS
from tests.models.parity_test import assert_near, golden
from tests.tinygguf import Tensors, with_tensors


def divided(name: str, path: Path) -> Path:
    """A golden model whose matrices were divided by powers of two, which their scales make up for."""
    source = gguf.GGUFReader(GOLDENS / f"{name}.gguf")
    tensors: Tensors = {}
    for i, tensor in enumerate(source.tensors):
        value = np.array(tensor.data)
        if value.ndim > 1 and tensor.name != "token_embd.weight" and "conv1d" not in tensor.name:
            n = len(value) if value.ndim == 3 else 1
            factors = np.exp2(np.arange(n) % 3 - 2 + i % 2 * 4).astype(np.float32)
            value /= factors.reshape(n, *[1] * (value.ndim - 1))
            stem = tensor.name.removesuffix(".weight")
            tensors |= {f"{stem}.scale": factors, f"{stem}.input_scale": np.full(1, 3, np.float32)}
        tensors[tensor.name] = value
    return with_tensors(source, path, tensors)


@pytest.mark.parametrize("name", ["llama_untied_biased", "qwen3moe", "qwen35_untied"])
def test_scales_make_up_for_what_the_weights_lack(name: str, tmp_path: Path) -> None:
    path, ids, expected = golden(name)
    ours = logits(divided(name, tmp_path / "m.gguf"), ids)
    assert_near(ours, expected, 1e-4)
    assert np.array_equal(ours, logits(path, ids))  # powers of two cost no bit


def test_a_matrix_has_one(tmp_path: Path) -> None:
    source = gguf.GGUFReader(GOLDENS / "llama.gguf")
    tensors = {tensor.name: np.array(tensor.data) for tensor in source.tensors}
    scales = {"blk.0.attn_q.scale": np.ones(2, np.float32)}
    with pytest.raises(ModelError, match="2 values, not one"):
        logits(with_tensors(source, tmp_path / "m.gguf", tensors | scales), [1])
