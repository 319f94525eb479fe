"""Cases of hyper-connections: hyper_weights, hyper_mix.

Bounds: eps = 2^-24 is the rounding of one float32 operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.dense_cases import EPS, Build, normal, strided, unwritten
from tests.ops.harness import Args, Bound, Case


def _weights(n: int, streams: int, *, whole: bool = True, spread: float = 2.0, rounds: int = 20, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        width = streams * (streams + 2) if whole else streams
        return {
            "logits": strided(normal(random, n, width, scale=spread)),
            "base": normal(random, width),
            "scale": normal(random, 3 if whole else 1) + np.float32(2),
            "out": strided(unwritten(n, width)),
            "eps": 1e-6,
            "n_rounds": rounds,
            **more,
        }

    return build


# A logit of size L has an error of L eps, its exponential one of that size relative to itself; rounds of division to a
# sum of 1 do not let it grow beyond that of the largest element of a row by more than their number.
_WEIGHTS_BOUND = Bound(relative=400 * EPS)

WEIGHTS = [
    Case("hyper_weights", "4", _weights(7, 4), _WEIGHTS_BOUND),
    Case("hyper_weights", "3", _weights(5, 3, n_rows=4), _WEIGHTS_BOUND),
    Case("hyper_weights", "1", _weights(5, 1), _WEIGHTS_BOUND),
    Case("hyper_weights", "8", _weights(2, 8, rounds=3), _WEIGHTS_BOUND),
    Case("hyper_weights", "one-round", _weights(3, 4, rounds=1), _WEIGHTS_BOUND),
    Case("hyper_weights", "large-eps", _weights(3, 4, eps=0.1), _WEIGHTS_BOUND),
    Case("hyper_weights", "far", _weights(3, 4, spread=5), Bound(relative=2000 * EPS)),
    Case("hyper_weights", "pre-alone", _weights(6, 4, whole=False), _WEIGHTS_BOUND),
    Case("hyper_weights", "no-rows", _weights(3, 4, n_rows=0), _WEIGHTS_BOUND),
    Case("hyper_weights", "4-512-rows", _weights(512, 4), _WEIGHTS_BOUND, is_timed=True),
]


def _mix(n: int, streams: int, width: int, *, in_place: bool = False, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        x = strided(normal(random, n, streams, width))
        weights = strided(normal(random, n, streams * (streams + 2)))
        out = x if in_place else strided(unwritten(n, streams, width))
        return {"x": x, "y": strided(normal(random, n, width)), "weights": weights, "out": out, **more}

    return build


_MIX_BOUND = Bound(of_row=16 * EPS)

MIX = [
    Case("hyper_mix", "odd", _mix(5, 3, 37), _MIX_BOUND),
    Case("hyper_mix", "in-place", _mix(4, 4, 600, in_place=True, n_rows=3), _MIX_BOUND),
    Case("hyper_mix", "one-stream", _mix(3, 1, 16), _MIX_BOUND),
    Case("hyper_mix", "4096-1", _mix(1, 4, 4096), _MIX_BOUND, is_timed=True),
    Case("hyper_mix", "4096-256", _mix(256, 4, 4096), _MIX_BOUND, is_timed=True),
]

CASES = [*WEIGHTS, *MIX]
