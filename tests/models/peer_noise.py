"""llama.cpp against itself: `python -m tests.models.peer_noise MODEL.gguf`.

Greedy tokens of its two attention paths (F32 cache and plain softmax; F16 cache and flash attention) on the prompts of
greedy_test. Where they part, how far apart its own two logits are: what a bound between two engines cannot be below.
"""

from __future__ import annotations

import sys
from pathlib import Path

import xllamacpp

from tests.models.llamacpp import LlamaCpp
from tests.models.real import N_TOKENS, PROMPTS


class Flash(LlamaCpp):
    """As llama.cpp runs when nothing is asked for."""

    def __init__(self, path: Path) -> None:
        p = xllamacpp.CommonParams()
        p.model.path = str(path)
        p.n_ctx, p.n_parallel, p.cpuparams.n_threads = 512, 1, 2
        p.warmup, p.verbosity = False, -1
        self._server = xllamacpp.Server(p)


def main(path: Path) -> None:
    plain, flash = LlamaCpp(path), Flash(path)
    for prompt in PROMPTS:
        ids = plain.tokenize(prompt)
        a, b = plain.greedy(ids, N_TOKENS), flash.greedy(ids, N_TOKENS)
        parted = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if parted is None:
            print(f"{prompt!r}: the same {len(a)} tokens")
            continue
        x, y = a[parted], b[parted]
        logprobs = [engine.logprobs(ids + a[:parted], 1000) for engine in (plain, flash)]
        gaps = ", ".join(f"{abs(p[x] - p[y]):.3f}" for p in logprobs)
        print(f"{prompt!r}: part at token {parted}, where the two are {gaps} apart")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
