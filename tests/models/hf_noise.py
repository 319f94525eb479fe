"""How far HF in F32 is from HF in F64, and how far we are, layer by layer: python -m tests.models.hf_noise [CASE...]

A hybrid of sharp random weights amplifies roundings (norms of small vectors, choices of experts): where both are as far
from F64, no engine can be nearer to HF.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch

from luced.engine.offline import resident
from tests import hfgguf
from tests.models.cases import CASES, make, tokens
from tests.models.taps_test import DENSE, EXPERTS, hidden_states, taps


@contextmanager
def in_f64() -> Iterator[None]:
    """What HF's code casts to F32 by name becomes F64."""
    f64 = torch.float64
    with (
        patch.object(torch, "float32", f64),
        patch.object(torch, "float", f64),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def main() -> None:
    for name in sys.argv[1:] or DENSE + EXPERTS:
        case, ids = CASES[name], tokens(CASES[name])
        model = make(case)
        theirs = hidden_states(model, ids)
        with TemporaryDirectory() as folder:
            path = hfgguf.export(model, Path(folder) / "m.gguf", case.dtype, n_mtp=case.n_mtp)
            with resident(path, kv_type="f32", n_batch=len(ids)) as runner:
                ours = [tap.copy() for tap in taps(runner, ids)]
        model.double().set_experts_implementation("eager")
        with in_f64():
            exact = hidden_states(model, ids)
        for layer, (a, b, c) in enumerate(zip(theirs, ours, exact, strict=True)):
            hf, us = (np.abs(x - c).max() / np.abs(c).max() for x in (a, b))
            print(f"{name}, before layer {layer}: HF {hf:.1e}, luced {us:.1e}")


if __name__ == "__main__":
    main()
