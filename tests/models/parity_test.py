"""Tiny models of every architecture against HF transformers: live where torch is, against goldens everywhere."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from luced.engine.offline import logits
from luced.errors import ModelError
from luced.models import ARCHITECTURES
from tests import hfgguf
from tests.models.cases import CASES, GOLDENS, make, reference, tokens
from tests.tinygguf import with_tensors


def golden(name: str) -> tuple[Path, list[int], NDArray[np.float32]]:
    with np.load(GOLDENS / f"{name}.npz") as file:
        return GOLDENS / f"{name}.gguf", file["tokens"].tolist(), file["logits"]


def assert_near(ours: NDArray[np.float32], theirs: NDArray[np.float32], tolerance: float) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float32
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error <= tolerance, f"largest difference is {error:.2e} of the largest logit"


def test_every_architecture_has_a_case() -> None:
    assert {case.architecture for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    path, ids, expected = golden(name)
    assert_near(logits(path, ids), expected, CASES[name].tolerance)


@pytest.mark.parametrize("name", CASES)
def test_live(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    case = CASES[name]
    model = make(case)
    path = hfgguf.export(model, tmp_path / "m.gguf", case.dtype, n_mtp=case.n_mtp)
    assert_near(logits(path, tokens(case)), reference(model, tokens(case)), case.tolerance)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("name", CASES)
def test_every_instruction_set(name: str, isa: str) -> None:
    path, ids, expected = golden(name)
    try:
        ours = logits(path, ids, isa=isa)
    except ModelError as error:
        if error.name == "no_device":
            pytest.skip(error.message)
        raise
    assert_near(ours, expected, CASES[name].tolerance)


@pytest.mark.parametrize("name", CASES)
def test_chunks_and_threads_change_no_bit(name: str) -> None:
    path, ids, _ = golden(name)
    whole = logits(path, ids, n_threads=1)
    for n_batch, n_threads in ((1, 1), (7, 1), (33, 2), (64, 3)):
        assert np.array_equal(logits(path, ids, n_batch=n_batch, n_threads=n_threads), whole), (n_batch, n_threads)


@pytest.mark.parametrize(("kv_type", "tolerance"), [("f16", 5e-3), ("bf16", 5e-2), ("q8_0", 0.15), ("f16/q4_0", 0.35)])
def test_smaller_keys_and_values(kv_type: str, tolerance: float) -> None:
    path, ids, expected = golden("llama_f16")
    ours = logits(path, ids, kv_type=kv_type)
    assert_near(ours, expected, tolerance)
    assert not np.array_equal(ours, logits(path, ids))


def test_qwen3next_of_an_older_converter(tmp_path: Path) -> None:
    source = gguf.GGUFReader(GOLDENS / "qwen3next.gguf")
    tensors = {tensor.name: np.array(tensor.data) for tensor in source.tensors}
    tensors["blk.0.ssm_in.weight"] = np.concatenate(
        [tensors.pop(f"blk.0.attn_{name}.weight") for name in ("qkv", "gate")]
    )
    with pytest.raises(ModelError, match="ssm_in") as refused:
        logits(with_tensors(source, tmp_path / "m.gguf", tensors), [1])
    assert refused.value.name == "unsupported_model"
