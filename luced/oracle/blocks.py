"""GGUF's block formats and ours as numpy dtypes, and what their bytes mean.

A tensor is seen as an array in reversed ggml order (ne[0] last). Its dtype names its type: float32, float16, uint16 for
BF16, int32, a block dtype (one element per block, so the last axis has K / 32 or K / 256 elements), or for Q8_A one
element per row. So the oracle needs no type ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luced.gguf import formats
from luced.oracle import level_blocks as levels

Array = NDArray[Any]
F32Array = NDArray[np.float32]

Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
Q5_0 = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q8_0 = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
Q2_K = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
Q6_K = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
TQ2_0 = np.dtype([("qs", "u1", 64), ("d", "<f2")])

BF16 = np.dtype("<u2")

# luce_type (luce.h) -> dtype. Q8_A (101) and U8 (100) depend on the tensor: see view().
DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    2: Q4_0,
    3: Q4_1,
    6: Q5_0,
    7: Q5_1,
    8: Q8_0,
    10: Q2_K,
    11: Q3_K,
    12: Q4_K,
    13: Q5_K,
    14: Q6_K,
    16: levels.IQ2_XXS,
    17: levels.IQ2_XS,
    18: levels.IQ3_XXS,
    20: levels.IQ4_NL,
    21: levels.IQ3_S,
    22: levels.IQ2_S,
    23: levels.IQ4_XS,
    26: np.dtype("<i4"),
    30: BF16,
    35: TQ2_0,
    39: levels.MXFP4,
    40: levels.NVFP4,
}
_BLOCK = {dtype: formats.BY_ID[type_id].block for type_id, dtype in DTYPES.items()}
_U8, _Q8_A = 100, 101


def q8_a(k: int) -> np.dtype[Any]:
    """A whole row of K quantised activations."""
    return np.dtype([("q", "i1", k), ("d", "<f4", k // 32), ("sum", "<i2", k // 16)])


def view(memory: Any, offset: int, type_id: int, ne: Sequence[int], nb: Sequence[int]) -> Array:
    """The tensor of luce_type `type_id` at `offset` bytes into a buffer, as the oracle takes it.

    U8 with nb[0] > 1 is an array of structs of nb[0] bytes.
    """
    ne, nb = list(ne), list(nb)
    if type_id == _Q8_A:
        dtype, ne, nb = q8_a(ne[0]), ne[1:], nb[1:]
    elif type_id == _U8:
        dtype = np.dtype("u1") if nb[0] == 1 else np.dtype((np.void, nb[0]))
    else:
        dtype = DTYPES[type_id]
        ne[0] //= values_per_block(dtype)
    return np.ndarray(tuple(ne[::-1]), dtype, memory, offset, tuple(nb[::-1]))


def values_per_block(dtype: np.dtype[Any]) -> int:
    """Values in one element of a tensor's dtype."""
    return _BLOCK.get(dtype, 1)


def values(a: Array) -> F32Array:
    """What an array of any weight, cache or activation dtype stands for, as float32 [..., K]."""
    if a.dtype == np.float32:
        return a
    if a.dtype == np.float16:
        return a.astype(np.float32)
    if a.dtype == BF16:
        return (a.astype(np.uint32) << 16).view(np.float32)
    if a.dtype in _DECODE:
        blocks = _DECODE[a.dtype](np.ascontiguousarray(a))
    else:
        assert a.dtype.names == ("q", "d", "sum"), a.dtype
        q, d = a["q"], a["d"]
        return (d[..., None] * q.reshape(*d.shape, 32).astype(np.float32)).reshape(q.shape)
    return blocks.reshape(*a.shape[:-1], -1)


def to_bf16(x: Array) -> Array:
    """float32 to BF16, rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_q8_0(x: Array) -> Array:
    """float32 [..., K] to Q8_0 [..., K / 32]: d = max|x| / 127, stored as f16; q = round-to-even(x / d)."""
    groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    q, d = quantize32(groups)
    out = np.zeros(groups.shape[:-1], Q8_0)
    out["qs"], out["d"] = q, d.astype(np.float16)
    return out


def to_q4_0(x: Array) -> Array:
    """float32 [..., K] to Q4_0 [..., K / 32]: d = x / -8 for the first x of the largest magnitude, stored as f16; codes
    are x / d + 8.5 without the fraction, at most 15."""
    groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    most = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)
    d = most / np.float32(-8)
    codes = groups * np.where(d != 0, 1 / np.where(d != 0, d, np.float32(1)), np.float32(0)) + np.float32(8.5)
    codes = np.minimum(codes, 15).astype(np.uint8)
    out = np.zeros(groups.shape[:-1], Q4_0)
    out["d"], out["qs"] = d[..., 0].astype(np.float16), codes[..., :16] | codes[..., 16:] << 4
    return out


def quantize32(groups: F32Array) -> tuple[NDArray[np.int8], F32Array]:
    """int8 q and float32 d of groups of 32 values; x / d is rounded to float32 before it is rounded to q."""
    d = np.abs(groups).max(-1) / np.float32(127)
    q = np.rint(groups / np.where(d > 0, d, np.float32(1))[..., None])
    return q.astype(np.int8), d


def store(pages: Array, index: Any, x: Array) -> None:
    """pages[index] = x, in the cache's type."""
    if pages.dtype == BF16:
        pages[index] = to_bf16(x)
    elif pages.dtype == Q8_0:
        pages[index] = to_q8_0(x)
    elif pages.dtype == Q4_0:
        pages[index] = to_q4_0(x)
    else:
        with np.errstate(over="ignore"):
            pages[index] = x.astype(pages.dtype)


def _f32(field: Array) -> F32Array:
    return field.astype(np.float32)[..., None]


def _nibbles(qs: Array) -> Array:
    """Low nibbles of a run of bytes, then the high ones."""
    return np.concatenate([qs & 15, qs >> 4], -1)


def _fifth_bit(qh: Array) -> Array:
    return np.unpackbits(qh, axis=-1, bitorder="little") << 4


def _q4_0(b: Array) -> F32Array:
    return _f32(b["d"]) * (_nibbles(b["qs"]).astype(np.float32) - 8)


def _q4_1(b: Array) -> F32Array:
    return _f32(b["d"]) * _nibbles(b["qs"]).astype(np.float32) + _f32(b["m"])


def _q5_0(b: Array) -> F32Array:
    return _f32(b["d"]) * ((_nibbles(b["qs"]) | _fifth_bit(b["qh"])).astype(np.float32) - 16)


def _q5_1(b: Array) -> F32Array:
    return _f32(b["d"]) * (_nibbles(b["qs"]) | _fifth_bit(b["qh"])).astype(np.float32) + _f32(b["m"])


def _q8_0(b: Array) -> F32Array:
    return _f32(b["d"]) * b["qs"].astype(np.float32)


def _planes(q: Array, bits: int, bytes_per_run: int) -> Array:
    """[..., n] bytes as runs that hold `8 / bits` planes each -> [..., run, plane, bytes_per_run]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs: Array = q.reshape(*q.shape[:-1], -1, 1, bytes_per_run)
    planes: Array = runs >> shifts & np.uint8((1 << bits) - 1)
    return planes


def _scale_min_6bit(s: Array) -> tuple[F32Array, F32Array]:
    """The eight 6-bit scales and minima of Q4_K and Q5_K, out of 12 bytes."""
    low, middle, high = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    scale = np.concatenate([low & 63, high & 15 | low >> 6 << 4], -1)
    minimum = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], -1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _affine(b: Array, q: Array, scale: F32Array, minimum: F32Array) -> F32Array:
    d, dmin = _f32(b["d"]) * scale, _f32(b["dmin"]) * minimum
    y: F32Array = d[..., None] * q.astype(np.float32) - dmin[..., None]
    return y


def _q2_k(b: Array) -> F32Array:
    q = _planes(b["qs"], 2, 32).reshape(*b.shape, 16, 16)
    return _affine(b, q, (b["scales"] & 15).astype(np.float32), (b["scales"] >> 4).astype(np.float32))


def _q3_k(b: Array) -> F32Array:
    low = _planes(b["qs"], 2, 32).reshape(*b.shape, 8, 32)
    high = _planes(b["hmask"], 1, 32).reshape(*b.shape, 8, 32)
    q = (low | high << 2).reshape(*b.shape, 16, 16).astype(np.float32) - 4
    s = b["scales"]
    scale = _nibbles(s[..., :8]) | _planes(s[..., 8:], 2, 4).reshape(*b.shape, 16) << 4
    d = _f32(b["d"]) * (scale.astype(np.float32) - 32)
    y: F32Array = d[..., None] * q
    return y


def _q4_k(b: Array) -> F32Array:
    return _affine(b, _planes(b["qs"], 4, 32).reshape(*b.shape, 8, 32), *_scale_min_6bit(b["scales"]))


def _q5_k(b: Array) -> F32Array:
    low = _planes(b["qs"], 4, 32).reshape(*b.shape, 8, 32)
    high = _planes(b["qh"], 1, 32).reshape(*b.shape, 8, 32)
    return _affine(b, low | high << 4, *_scale_min_6bit(b["scales"]))


def _q6_k(b: Array) -> F32Array:
    # Each half of 128 values has 64 bytes of low nibbles and 32 bytes that hold four planes of high bits.
    low = _planes(b["ql"], 4, 64).reshape(*b.shape, 2, 4, 32)
    high = _planes(b["qh"], 2, 32)
    q = (low | high << 4).reshape(*b.shape, 16, 16).astype(np.float32) - 32
    d = _f32(b["d"]) * b["scales"].astype(np.float32)
    y: F32Array = d[..., None] * q
    return y


def _tq2_0(b: Array) -> F32Array:
    return _f32(b["d"]) * (_planes(b["qs"], 2, 32).reshape(*b.shape, 256).astype(np.float32) - 1)


_DECODE: dict[np.dtype[Any], Callable[[Array], F32Array]] = {
    Q4_0: _q4_0,
    Q4_1: _q4_1,
    Q5_0: _q5_0,
    Q5_1: _q5_1,
    Q8_0: _q8_0,
    Q2_K: _q2_k,
    Q3_K: _q3_k,
    Q4_K: _q4_k,
    Q5_K: _q5_k,
    Q6_K: _q6_k,
    TQ2_0: _tq2_0,
    **levels.DECODE,
}
