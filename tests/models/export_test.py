"""hfgguf writes what the converters write: llama.cpp, reading its files, says what HF says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import hfgguf, tinygguf
from tests.models.cases import CASES, make, reference, tokens

pytestmark = pytest.mark.slow
# llama.cpp refuses heads of the delta rule whose keys and values differ in length, and any convolution but over four.
REFUSED = {"qwen35_untied"}
EXACT = [name for name, case in CASES.items() if case.dtype == "F32" and case.peer and name not in REFUSED]


@pytest.mark.parametrize("name", EXACT)
def test_llama_cpp_reads_it_as_hf(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("xllamacpp")
    from tests.models.llamacpp import LlamaCpp

    n_vocab = dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), tinygguf.N_VOCAB)
    case = replace(CASES[name], config=CASES[name].config | n_vocab)
    model = make(case)
    logits = reference(model, tokens(case)).astype(np.float64)
    path = hfgguf.export(model, tmp_path / "m.gguf", vocabulary=True, n_mtp=case.n_mtp)
    # llama.cpp reports logprobs only if the likeliest token is text: a printable ASCII byte or a merge.
    best = logits.argmax(1)
    last = int(np.flatnonzero(((best > 35) & (best < 130)) | (best >= 259))[-1])
    expected = logits[last] - np.logaddexp.reduce(logits[last])
    ours = LlamaCpp(path).logprobs(tokens(case)[: last + 1], tinygguf.N_VOCAB)
    assert len(ours) == tinygguf.N_VOCAB
    # llama.cpp looks GELU up in a table of halves: once in each layer, twice in those of gemma4 that have inputs of
    # their own or experts.
    gelu = {"gemma2": 5e-3, "gemma3": 5e-3, "gemma4": 5e-2}
    tolerance = gelu.get(case.architecture, 1e-4)
    assert max(abs(expected[token] - logprob) for token, logprob in ours.items()) < tolerance
