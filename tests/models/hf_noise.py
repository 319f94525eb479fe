"""How far HF in F32 is from HF in F64, and how far we are, weight by weight: python -m tests.models.hf_noise [CASE...]

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
from tests.models.taps_test import EXACT, flat, hf_taps, taps


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
    for name in sys.argv[1:] or EXACT:
        case, ids = CASES[name], tokens(CASES[name])
        model = make(case)
        theirs = hf_taps(model, case)
        with TemporaryDirectory() as folder:
            path = hfgguf.export(model, Path(folder) / "m.gguf", case.dtype, n_mtp=case.n_mtp)
            with resident(path, kv_type="f32", n_batch=len(ids)) as runner:
                ours = dict(taps(runner, ids))
        model.double().set_experts_implementation("eager")
        with in_f64():
            exact = hf_taps(model, case)
        for weight, a in ours.items():
            if weight in exact:
                hf, us = (np.abs(flat(x, len(a)) - flat(exact[weight], len(a))).max() for x in (theirs[weight], a))
                scale = np.abs(exact[weight]).max()
                print(f"{name}, at {weight}: HF {hf / scale:.1e}, luced {us / scale:.1e}")


if __name__ == "__main__":
    main()
