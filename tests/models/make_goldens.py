"""Writes goldens/: each case's GGUF file and HF's logits for it. `python -m tests.models.make_goldens [CASE...]`; needs
torch."""

from __future__ import annotations

import sys

import numpy as np

from tests import hfgguf
from tests.models.cases import CASES, GOLDENS, make, reference, tokens

MAX_BYTES = 300_000


def main() -> None:
    GOLDENS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        case = CASES[name]
        model = make(case)
        path = hfgguf.export(model, GOLDENS / f"{name}.gguf", case.dtype, n_mtp=case.n_mtp)
        np.savez_compressed(GOLDENS / f"{name}.npz", tokens=tokens(case), logits=reference(model, tokens(case)))
        assert path.stat().st_size < MAX_BYTES, (name, path.stat().st_size)
        print(f"{name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
