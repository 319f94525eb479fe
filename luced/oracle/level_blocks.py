"""GGUF's block formats whose codes stand for values of a table, as numpy dtypes, and what their bytes mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luced.oracle import codebooks

Array = NDArray[Any]
F32Array = NDArray[np.float32]

IQ2_XXS = np.dtype([("d", "<f2"), ("spans", [("qs", "u1", 4), ("signs", "<u4")], 8)])
IQ2_XS = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
IQ2_S = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])
IQ3_XXS = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])
IQ3_S = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
IQ4_NL = np.dtype([("d", "<f2"), ("codes", "u1", 16)])  # not qs: its dtype would be that of Q4_0
IQ4_XS = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])
MXFP4 = np.dtype([("e", "u1"), ("qs", "u1", 16)])
NVFP4 = np.dtype([("e4m3", "u1", 4), ("qs", "u1", 32)])

_IQ2 = np.array([8, 25, 43], np.float32)
_IQ3_XXS = np.array([4, 12, 20, 28, 36, 44, 52, 62], np.float32)
_IQ3_S = np.arange(1, 16, 2, dtype=np.float32)
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _nibble_pairs(a: Array) -> Array:
    """The low and the high nibble of each byte, in turn."""
    pairs: Array = np.stack([a & 15, a >> 4], -1).reshape(*a.shape[:-1], -1)
    return pairs


def _nibble_halves(a: Array) -> Array:
    """[..., n] bytes to [..., 2n]: all low nibbles, then the high ones."""
    return np.concatenate([a & 15, a >> 4], -1)


def _even(seven: Array) -> Array:
    """Seven signs and an eighth that makes the number of minus signs even."""
    eighth: Array = (np.bitwise_count(seven) & 1).astype(seven.dtype) << 7
    return seven | eighth


def _four_sevens(a: Array) -> Array:
    """The four fields of seven bits of each word: [..., n] to [..., 4n]."""
    fields: Array = a[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127
    return fields.reshape(*a.shape[:-1], -1)


def _signed(points: Array, magnitudes: F32Array, signs: Array) -> F32Array:
    """[..., n, v] places among the magnitudes, with 8 signs in each byte: [..., n * v]."""
    minus = signs[..., None] >> np.arange(8, dtype=signs.dtype) & 1
    values: F32Array = magnitudes[points].reshape(*points.shape[:-2], -1)
    values *= 1 - 2 * minus.reshape(values.shape).astype(np.float32)
    return values


def _times(scale: Array, values: F32Array) -> F32Array:
    """[..., spans] times [..., values], as many in each span."""
    spans: F32Array = scale.astype(np.float32)[..., None] * values.reshape(*scale.shape, -1)
    return spans.reshape(values.shape)


def _half_scales(b: Array, scale: Array, unit: float) -> F32Array:
    """d * unit * (scale + 1/2)."""
    scales: F32Array = b["d"].astype(np.float32)[..., None] * (np.float32(0.5) + scale.astype(np.float32))
    return scales * np.float32(unit)


def _iq2_xxs(b: Array) -> F32Array:
    words = b["spans"]["signs"]
    points = codebooks.IQ2_XXS[b["spans"]["qs"].reshape(*b.shape, 32)]
    values = _signed(points, _IQ2, _even(_four_sevens(words)))
    return _times(_half_scales(b, words >> 28, 0.25), values)


def _iq2_xs(b: Array) -> F32Array:
    values = _signed(codebooks.IQ2_XS[b["qs"] & 511], _IQ2, _even(b["qs"] >> 9))
    return _times(_half_scales(b, _nibble_pairs(b["scales"]), 0.25), values)


def _iq2_s(b: Array) -> F32Array:
    high = (b["qh"][..., None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3).reshape(*b.shape, 32)
    values = _signed(codebooks.IQ2_S[b["qs"] | high.astype(np.uint16) << 8], _IQ2, b["signs"])
    return _times(_half_scales(b, _nibble_pairs(b["scales"]), 0.25), values)


def _iq3_xxs(b: Array) -> F32Array:
    values = _signed(codebooks.IQ3_XXS[b["qs"]], _IQ3_XXS, _even(_four_sevens(b["signs"])))
    return _times(_half_scales(b, b["signs"] >> 28, 0.5), values)


def _iq3_s(b: Array) -> F32Array:
    high = np.unpackbits(b["qh"], axis=-1, bitorder="little")
    values = _signed(codebooks.IQ3_S[b["qs"] | high.astype(np.uint16) << 8], _IQ3_S, b["signs"])
    return _times(_half_scales(b, _nibble_pairs(b["scales"]), 2), values)


def _iq4_nl(b: Array) -> F32Array:
    return _times(b["d"][..., None], _IQ4[_nibble_halves(b["codes"])])


def _iq4_xs(b: Array) -> F32Array:
    high = b["scales_h"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scale = (_nibble_pairs(b["scales_l"]) | high << 4).astype(np.float32) - 32
    codes = _nibble_halves(b["qs"].reshape(*b.shape, 8, 16)).reshape(*b.shape, 256)
    return _times(b["d"].astype(np.float32)[..., None] * scale, _IQ4[codes])


def _mxfp4(b: Array) -> F32Array:
    return _times(np.ldexp(np.float32(1), b["e"].astype(np.int32) - 128)[..., None], _FP4[_nibble_halves(b["qs"])])


def _nvfp4(b: Array) -> F32Array:
    exponent, fraction = (b["e4m3"] >> 3 & 15).astype(np.int32), (b["e4m3"] & 7).astype(np.float32)
    scale = np.ldexp(np.where(exponent > 0, 8 + fraction, fraction), np.maximum(exponent, 1) - 11)
    scale = np.where(b["e4m3"] == 0x7F, 0, scale)  # what would be its NaN
    codes = _nibble_halves(b["qs"].reshape(*b.shape, 4, 8)).reshape(*b.shape, 64)
    return _times(scale, _FP4[codes])


DECODE: dict[np.dtype[Any], Callable[[Array], F32Array]] = {
    IQ2_XXS: _iq2_xxs,
    IQ2_XS: _iq2_xs,
    IQ2_S: _iq2_s,
    IQ3_XXS: _iq3_xxs,
    IQ3_S: _iq3_s,
    IQ4_NL: _iq4_nl,
    IQ4_XS: _iq4_xs,
    MXFP4: _mxfp4,
    NVFP4: _nvfp4,
}
