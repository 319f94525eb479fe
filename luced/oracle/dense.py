"""What the ops on rows mean: embed, quantize, matmul, norms, pointwise, rope, rows. float64 inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.device.abi import GateFunction
from luced.oracle.blocks import Array, quantize32, values
from luced.oracle.fault import NONE, ROW, TOKEN


def embed(a: Any) -> int:
    ids = a.ids[: a.n_rows]
    good = (ids >= 0) & (ids < a.weight.shape[0])
    a.out[: a.n_rows][good] = values(a.weight[ids[good]]) * np.float32(a.scale)
    a.out[: a.n_rows][~good] = 0
    return NONE if good.all() else TOKEN


def quantize(a: Any) -> int:
    x = a.x[: a.n_rows]
    n, k = x.shape
    q, d = quantize32(x.reshape(n, k // 32, 32))
    a.out["q"][: a.n_rows] = q.reshape(n, k)
    a.out["d"][: a.n_rows] = d
    a.out["sum"][: a.n_rows] = q.reshape(n, k // 16, 16).sum(-1, dtype=np.int16)
    return NONE


def matmul(a: Any) -> int:
    y = _wide(values(a.x[: a.n_rows])) @ _wide(values(a.weight)).T
    if a.bias is not None:
        y += a.bias
    if a.add is not None:
        y += a.add[: a.n_rows]
    a.out[: a.n_rows] = y
    return NONE


def rms_norm(a: Any) -> int:
    x = _wide(a.x[: a.n_rows])
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + a.eps)
    a.out[: a.n_rows] = y if a.weight is None else y * a.weight
    return NONE


def l2_norm(a: Any) -> int:
    x = _wide(a.x[: a.n_rows])
    a.out[: a.n_rows] = x / np.sqrt((x * x).sum(-1, keepdims=True) + a.eps)
    return NONE


def gated_norm(a: Any) -> int:
    x, gate = _wide(a.x[: a.n_rows]), _wide(a.gate[: a.n_rows])
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + a.eps) * a.weight
    a.out[: a.n_rows] = y * gate / (1 + np.exp(-gate))
    return NONE


def add(a: Any) -> int:
    a.out[: a.n_rows] = a.a[: a.n_rows] + a.b[: a.n_rows]
    return NONE


def scale(a: Any) -> int:
    a.out[: a.n_rows] = np.float32(a.factor) * a.x[: a.n_rows]
    return NONE


def glu(a: Any) -> int:
    g, up = _wide(a.gate[: a.n_rows]), a.up[: a.n_rows]
    if a.limit:
        g, up = np.minimum(g, a.limit), np.clip(up, -a.limit, a.limit)
    with np.errstate(over="ignore"):
        silu = g / (1 + np.exp(-g))
    gelu = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    a.out[: a.n_rows] = (gelu if a.activation else silu) * up
    return NONE


def gate(a: Any) -> int:
    x, g = _wide(a.x[: a.n_rows]), _wide(a.gate[: a.n_rows])
    with np.errstate(over="ignore"):
        a.out[: a.n_rows] = x * np.logaddexp(0, g) if a.function == GateFunction.SOFTPLUS else x / (1 + np.exp(-g))
    return NONE


def softcap(a: Any) -> int:
    a.out[: a.n_rows] = a.cap * np.tanh(_wide(a.x[: a.n_rows]) / a.cap)
    return NONE


def rope_angles(a: Any) -> int:
    # The angle itself is float32, as in every published implementation.
    theta = a.positions[: a.n_rows, None].astype(np.float32) * a.frequencies
    a.out[: a.n_rows, 0::2] = a.magnitude * np.cos(_wide(theta))
    a.out[: a.n_rows, 1::2] = a.magnitude * np.sin(_wide(theta))
    return NONE


def rope(a: Any) -> int:
    x = _wide(a.x[: a.n_rows])
    angles = _wide(a.angles[: a.n_rows, None, :])
    cos, sin = angles[..., 0::2], angles[..., 1::2]
    n_rot = a.angles.shape[-1]
    first, second = (
        (slice(0, n_rot // 2), slice(n_rot // 2, n_rot)) if a.mode else (slice(0, n_rot, 2), slice(1, n_rot, 2))
    )
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    a.out[: a.n_rows] = y
    return NONE


def rows(a: Any) -> int:
    index = a.index[: a.n_rows]
    good = (index >= 0) & (index < len(a.x))
    a.out[: a.n_rows][good] = a.x[index[good]]
    a.out[: a.n_rows][~good] = 0
    return NONE if good.all() else ROW


def _wide(x: Array) -> Array:
    return x.astype(np.float64)
