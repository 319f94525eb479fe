"""What the ops of hyper-connections mean: hyper_weights, hyper_mix. float64 inside."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from luced.oracle.blocks import Array
from luced.oracle.fault import NONE


def hyper_weights(a: Any) -> int:
    n, width = a.n_rows, a.logits.shape[1]
    streams = width if len(a.scale) == 1 else math.isqrt(width + 1) - 1
    parts = np.minimum(np.arange(width) // streams, 2)
    x = a.logits[:n].astype(np.float64) * a.scale[parts] + a.base
    a.out[:n, :streams] = _sigmoid(x[:, :streams]) + a.eps
    if len(a.scale) == 3:
        a.out[:n, streams : 2 * streams] = 2 * _sigmoid(x[:, streams : 2 * streams])
        mix = x[:, 2 * streams :].reshape(n, streams, streams)
        a.out[:n, 2 * streams :] = _balanced(mix, a.eps, a.n_rounds).reshape(n, streams * streams)
    return NONE


def hyper_mix(a: Any) -> int:
    n, streams = a.n_rows, a.x.shape[1]
    weights = a.weights[:n].astype(np.float64)
    mix = weights[:, 2 * streams :].reshape(n, streams, streams)
    mixed = np.einsum("nsd,nse->nde", mix, a.x[:n].astype(np.float64))
    a.out[:n] = mixed + weights[:, streams : 2 * streams, None] * a.y[:n, None]
    return NONE


def _sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + np.exp(-x))
    return y


def _balanced(x: Array, eps: float, n_rounds: int) -> Array:
    """[n, s, d]: softmax over d, then Sinkhorn and Knopp's rounds."""
    e = np.exp(x - x.max(2, keepdims=True))
    mix: Array = e / e.sum(2, keepdims=True) + eps
    mix = mix / (mix.sum(1, keepdims=True) + eps)
    for _ in range(n_rounds - 1):
        mix = mix / (mix.sum(2, keepdims=True) + eps)
        mix = mix / (mix.sum(1, keepdims=True) + eps)
    return mix
