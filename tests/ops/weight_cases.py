"""Cases of the ops that read weights or make their activations: embed, quantize, matmul, on every weight type.

Bounds: eps = 2^-24. embed and quantize are exact. A sum of matmul over K is exact inside 32 values of a quantised type;
what is added then has three roundings, and K / 32 of them are added in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from luced.device.abi import FaultCode, Type
from luced.oracle.blocks import DTYPES, q8_a, quantize32, to_bf16, values_per_block
from tests.ops.dense_cases import EPS, Build, normal, strided, unwritten
from tests.ops.harness import Args, Array, Bound, Case

FLOATS = (Type.F32, Type.F16, Type.BF16)
QUANTISED = (
    *(Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0),
    *(Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.TQ2_0),
    *(Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S, Type.IQ4_NL, Type.IQ4_XS),
    *(Type.MXFP4, Type.NVFP4),
)


# The largest value of a block over its d.
LARGEST = {Type.Q8_0: 128, Type.Q2_K: 64, Type.Q3_K: 128, Type.Q4_K: 1024, Type.Q5_K: 2048, Type.Q6_K: 4096}
LARGEST |= {Type.IQ2_XXS: 166, Type.IQ2_XS: 166, Type.IQ2_S: 166, Type.IQ3_XXS: 480, Type.IQ3_S: 465}
LARGEST |= {Type.IQ4_NL: 127, Type.IQ4_XS: 4064, Type.TQ2_0: 2}


def weight(random: np.random.Generator, type_: Type, n: int, k: int) -> Array:
    """[n, k] values of a type: any codes, scales and minima of both signs, values of the order of 1."""
    if type_ in FLOATS:
        x = normal(random, n, k)
        return to_bf16(x) if type_ == Type.BF16 else x.astype(DTYPES[type_])
    dtype = DTYPES[type_]
    n_blocks = k // values_per_block(dtype)
    raw = random.integers(0, 256, (n, n_blocks * dtype.itemsize), np.uint8).view(dtype)
    for name in {"d", "m", "dmin"} & set(dtype.names or ()):
        raw[name] = random.normal(size=raw.shape) / (LARGEST.get(type_, 16) if name == "d" else 16)
    if type_ == Type.MXFP4:
        raw["e"] = random.integers(120, 128, raw.shape)
    return raw


def activations(random: np.random.Generator, n: int, k: int) -> Array:
    """Q8_A rows of different sizes."""
    x = normal(random, n, k) * random.uniform(0.1, 3, (n, 1)).astype(np.float32)
    out = np.zeros(n, q8_a(k))
    q, d = quantize32(x.reshape(n, -1, 32))
    out["q"], out["d"], out["sum"] = q.reshape(n, k), d, q.reshape(n, -1, 16).sum(-1, dtype=np.int16)
    return out


def _embed(type_: Type, e: int, ids: Sequence[int], **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        out = strided(unwritten(len(ids), e))
        return {
            "weight": weight(random, type_, 37, e),
            "ids": np.array(ids, np.int32),
            "out": out,
            "scale": 1.5,
            **more,
        }

    return build


def _every_exponent(random: np.random.Generator) -> Args:
    args = _embed(Type.MXFP4, 8 * 32, list(range(32)))(random)
    args["weight"].reshape(-1)["e"][:252] = np.arange(252)  # above, a value is infinite
    args["weight"].reshape(-1)["e"][252:] = 127
    return args


EMBED = [
    *[Case("embed", f"{type_.name}-odd", _embed(type_, 77, [36, 0, 7, 7, 3], n_rows=4)) for type_ in FLOATS],
    *[Case("embed", f"{type_.name}", _embed(type_, 768, [36, 0, 7, 7, 3], n_rows=4)) for type_ in QUANTISED],
    Case("embed", "MXFP4-every-exponent", _every_exponent),
    Case("embed", "outside", _embed(Type.Q4_0, 64, [36, 37, 1]), fault=FaultCode.TOKEN, cut=False),
    Case("embed", "negative", _embed(Type.F32, 64, [36, -1, 1]), fault=FaultCode.TOKEN, cut=False),
    Case("embed", "Q8_0-512-rows", _embed(Type.Q8_0, 576, [i % 37 for i in range(512)]), is_timed=True),
]


def _quantize(n: int, k: int, *, scale: float = 1.0, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        x = strided(normal(random, n, k, scale=scale))
        x[0, :32] = 0
        return {"x": x, "out": np.zeros(n, q8_a(k)), **more}

    return build


def _quantize_ties(random: np.random.Generator) -> Args:
    # x / d of -127 to 127 in steps of a half.
    x = (np.arange(-127 * 2, 127 * 2 + 2, dtype=np.float32) / 2).reshape(1, -1)[:, : 15 * 32].reshape(15, 32).copy()
    x[:, 0] = 127
    return {"x": x, "out": np.zeros(15, q8_a(32))}


QUANTIZE = [
    Case("quantize", "one-block", _quantize(3, 32)),
    Case("quantize", "some-rows", _quantize(5, 96, n_rows=4)),
    Case("quantize", "no-rows", _quantize(5, 96, n_rows=0)),
    Case("quantize", "tiny", _quantize(2, 64, scale=1e-42)),
    Case("quantize", "huge", _quantize(2, 64, scale=1e37)),
    Case("quantize", "ties", _quantize_ties),
    Case("quantize", "2048", _quantize(1, 2048), is_timed=True),
    Case("quantize", "2048-512-rows", _quantize(512, 2048), is_timed=True),
]


def _matmul(type_: Type, k: int, n_out: int, n: int, *, bias: bool = False, add: str = "", **more: Any) -> Build:
    """`add`: "" for none, "apart", or "out" for the output's own place."""

    def build(random: np.random.Generator) -> Args:
        x = strided(normal(random, n, k)) if type_ in FLOATS else activations(random, n, k)
        out = strided(normal(random, n, n_out) if add == "out" else unwritten(n, n_out))
        args = {"weight": weight(random, type_, n_out, k), "x": x, "out": out, **more}
        if bias:
            args["bias"] = normal(random, n_out)
        if add:
            args["add"] = out if add == "out" else normal(random, n, n_out)
        return args

    return build


def _matmul_cases(type_: Type) -> list[Case]:
    name, block = type_.name, values_per_block(DTYPES[type_])
    bound = Bound(of_row=32 * EPS)
    cases = [
        Case("matmul", f"{name}-one-block", _matmul(type_, max(block, 7), 17, 3), bound),
        Case("matmul", f"{name}-bias", _matmul(type_, 3 * max(block, 11), 48, 9, bias=True, n_rows=8), bound),
        Case("matmul", f"{name}-add", _matmul(type_, 2 * -(-80 // block) * block, 37, 21, add="apart"), bound),
        Case("matmul", f"{name}-onto-out", _matmul(type_, 256, 16, 5, bias=True, add="out", n_rows=4), bound),
        Case("matmul", f"{name}-no-rows", _matmul(type_, 256, 5, 2, n_rows=0), bound),
    ]
    if type_ in QUANTISED:  # on a GPU blocks share such rows
        cases.append(Case("matmul", f"{name}-long-rows", _matmul(type_, 28672, 33, 9), Bound(of_row=128 * EPS)))
    for n in (1, 64):
        build = _matmul(type_, 1536, 576, n)
        flops = 2.0 * 1536 * 576 * n
        cases.append(Case("matmul", f"{name}-1536x576-{n}", build, bound, flops=flops, is_timed=True))
    return cases


MATMUL = [case for type_ in (*FLOATS, *QUANTISED) for case in _matmul_cases(type_)]

CASES = [*EMBED, *QUANTIZE, *MATMUL]
