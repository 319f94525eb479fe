"""Whole models in every type of weight, as llama.cpp's quantisers write them: beside the same values in F32, and beside
llama.cpp.

What remains between them is that activations are rounded to int8, which with quantised weights llama.cpp does too, in
blocks of 256 for most types where we have 32.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from luced.engine.ledger import plan
from luced.engine.offline import logits
from luced.gguf.reader import open_gguf
from tests.tinygguf import N_VOCAB, tiny_chat_model

pytest.importorskip("xllamacpp")

TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ2_0"),
    *("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"),
)
IDS = [(37 * i + 5) % N_VOCAB for i in range(24)]


@pytest.mark.parametrize("dtype", TYPES)
def test_as_the_same_values_in_f32(dtype: str, tmp_path: Path) -> None:
    quantised, plain = (
        logits(tiny_chat_model(tmp_path / f"{spelled_out}.gguf", dtype=dtype, n_embd=256, spelled_out=spelled_out), IDS)
        for spelled_out in (False, True)
    )
    error = np.sqrt(((quantised - plain) ** 2).mean()) / plain.std()
    assert 0 < error < 0.04  # rounding activations to int8 costs 1.2 to 2.1 %


def test_the_plan_counts_what_tiles_take(tmp_path: Path) -> None:
    path = tiny_chat_model(tmp_path / "m.gguf", dtype="IQ2_XXS", n_embd=256)
    with open_gguf(path) as file:
        in_file = sum(t.n_bytes for t in file.tensors.values() if t.type == "IQ2_XXS" and t.name != "token_embd.weight")
    (weights,) = (owner.n_bytes for owner in plan(path).owners if owner.name == "weights")
    assert 1.6 * in_file < weights < 1.65 * in_file  # some rows of the last tile are no rows


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_as_llama_cpp(dtype: str, tmp_path: Path) -> None:
    from tests.models.llamacpp import LlamaCpp

    path = tiny_chat_model(tmp_path / "m.gguf", dtype=dtype, n_embd=256)
    ours = logits(path, IDS).astype(np.float64)
    # llama.cpp reports logprobs only if the likeliest token is text: a printable ASCII byte or a merge.
    best = ours.argmax(1)
    last = int(np.flatnonzero(((best > 35) & (best < 130)) | (best >= 259))[-1])
    expected = ours[last] - np.logaddexp.reduce(ours[last])
    theirs = LlamaCpp(path).logprobs(IDS[: last + 1], N_VOCAB)
    assert len(theirs) == N_VOCAB
    error = np.array([expected[token] - logprob for token, logprob in theirs.items()])
    assert np.sqrt((error**2).mean()) < 0.05 * expected.std()
