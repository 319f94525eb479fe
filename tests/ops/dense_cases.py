"""Cases of the ops on rows: norm, pointwise, rope, rows.

Bounds: eps = 2^-24 is the rounding of one float32 operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from luced.device.abi import FaultCode
from tests.ops.harness import Args, Array, Bound, Case

EPS = 2.0**-24
_EXP_ULP = 4 * EPS  # of math.h's exp and tanh, with a margin


def unwritten(*shape: int) -> Array:
    """An output: NaN until somebody writes it."""
    return np.full(shape, np.nan, np.float32)


def strided(a: Array) -> Array:
    """The same values as a view into something wider and longer."""
    wide = np.full((*a.shape[:-1], a.shape[-1] + 5), np.nan, a.dtype)
    wide[..., : a.shape[-1]] = a
    return wide[..., : a.shape[-1]]


def normal(random: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    return (random.standard_normal(shape) * scale).astype(np.float32)


Build = Callable[[np.random.Generator], Args]


def _norm(n: int, h: int, d: int, *, weight: bool = True, scale: float = 1.0, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        x = normal(random, n, h, d, scale=scale)
        args = {"x": x, "out": unwritten(n, h, d), "eps": 1e-6, **more}
        return args | ({"weight": normal(random, d)} if weight else {})

    return build


def _norm_in_place(random: np.random.Generator) -> Args:
    # q of a fused qkv row, normalised where it lies.
    heads = normal(random, 3, 7, 24)[:, 1:5]
    return {"x": heads, "out": heads, "weight": normal(random, 24), "eps": 1e-5}


# A sum of D squares in at least 16 parts: its error is below (D / 16 + 8) eps and half of it reaches the root;
# three more roundings follow.
_NORM_BOUND = Bound(relative=80 * EPS)

NORM = [
    Case("rms_norm", "odd", _norm(5, 3, 37), _NORM_BOUND),
    Case("rms_norm", "one-value", _norm(2, 1, 1), _NORM_BOUND),
    Case("rms_norm", "no-weight", _norm(4, 2, 64, weight=False), _NORM_BOUND),
    Case("rms_norm", "tiny-values-feel-eps", _norm(3, 1, 48, scale=1e-3), _NORM_BOUND),
    Case("rms_norm", "some-rows", _norm(6, 2, 40, n_rows=4), _NORM_BOUND),
    Case("rms_norm", "no-rows", _norm(6, 2, 40, n_rows=0), _NORM_BOUND),
    Case("rms_norm", "in-place", _norm_in_place, _NORM_BOUND),
    Case("rms_norm", "hidden", _norm(1, 1, 576), _NORM_BOUND, is_timed=True),
    Case("rms_norm", "hidden-8192", _norm(1, 1, 8192), Bound(relative=300 * EPS), is_timed=True),
    Case("rms_norm", "hidden-512-rows", _norm(512, 1, 576), _NORM_BOUND, is_timed=True),
    Case("rms_norm", "heads", _norm(16, 16, 128), _NORM_BOUND, is_timed=True),
]


def _l2(n: int, h: int, d: int, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        return {"x": strided(normal(random, n, h, d)), "out": unwritten(n, h, d), "eps": 1e-6, **more}

    return build


def _gated(n: int, h: int, d: int, *, place: str = "", weight: bool = True, one: bool = False, **more: Any) -> Build:
    """x and gate, of one value for each head with `one`; the output lies in `place` if that is given."""

    def build(random: np.random.Generator) -> Args:
        args = {
            "x": strided(normal(random, n, h, d)),
            "gate": strided(normal(random, n, h, 1 if one else d, scale=3)),
            "out": unwritten(n, h, d),
            **more,
        }
        return (
            args
            | ({"weight": normal(random, d), "eps": 1e-6} if weight else {})
            | ({"out": args[place]} if place else {})
        )

    return build


L2 = [
    Case("l2_norm", "odd", _l2(5, 3, 37), _NORM_BOUND),
    Case("l2_norm", "one-value", _l2(2, 1, 1), _NORM_BOUND),
    Case("l2_norm", "some-rows", _l2(6, 2, 40, n_rows=4), _NORM_BOUND),
    Case("l2_norm", "feels-eps", _l2(3, 2, 48, eps=3.0), _NORM_BOUND),
    Case("l2_norm", "heads-512-rows", _l2(512, 32, 128), _NORM_BOUND, is_timed=True),
]


def _pair(first: str, second: str, n: int, d: int, *, place: str = "", scale: float = 1.0, **more: Any) -> Build:
    """Two inputs and an output, which lies in `place` if that is given."""

    def build(random: np.random.Generator) -> Args:
        args = {
            first: strided(normal(random, n, d, scale=scale)),
            second: normal(random, n, d),
            "out": strided(unwritten(n, d)),
            **more,
        }
        return args | ({"out": args[place]} if place else {})

    return build


# exp, one addition, one division, one multiplication; GELU's argument u has an error of 4 eps u, which e^-2u makes
# 8 eps u of the result where that is small: there it is bounded by the row.
_SILU_BOUND = Bound(relative=_EXP_ULP + 100 * EPS)
_GELU_BOUND = Bound(relative=_EXP_ULP + 40 * EPS, of_row=4 * EPS)


def _far(activation: int) -> Build:
    """Where e^x overflows or vanishes."""

    def build(random: np.random.Generator) -> Args:
        gate = np.array([[-1e30, -200, -100, -88, -80, -30, -1e-6, 0, 1e-6, 20, 88, 100, 1e4]], np.float32)
        return {"gate": gate, "up": np.ones_like(gate), "out": unwritten(*gate.shape), "activation": activation}

    return build


POINTWISE = [
    Case("add", "odd", _pair("a", "b", 5, 37), Bound(relative=EPS)),
    Case("add", "onto-a", _pair("a", "b", 3, 600, place="a"), Bound(relative=EPS)),
    Case("add", "onto-b", _pair("a", "b", 3, 16, place="b", n_rows=2), Bound(relative=EPS)),
    Case("add", "hidden", _pair("a", "b", 1, 576), Bound(relative=EPS), is_timed=True),
    Case("glu", "silu-odd", _pair("gate", "up", 5, 37, scale=4, activation=0), _SILU_BOUND),
    Case("glu", "silu-onto-gate", _pair("gate", "up", 3, 1100, place="gate", activation=0), _SILU_BOUND),
    Case("glu", "silu-some-rows", _pair("gate", "up", 4, 70, activation=0, n_rows=3), _SILU_BOUND),
    Case("glu", "silu-far", _far(0), Bound(relative=120 * EPS, absolute=1e-30)),
    Case("glu", "silu-limit", _pair("gate", "up", 5, 37, scale=4, activation=0, limit=1.5), _SILU_BOUND),
    Case("glu", "gelu-limit", _pair("gate", "up", 5, 37, scale=3, activation=1, limit=1.5), _GELU_BOUND),
    Case("glu", "gelu-odd", _pair("gate", "up", 5, 37, scale=3, activation=1), _GELU_BOUND),
    Case("glu", "gelu-onto-up", _pair("gate", "up", 3, 1100, place="up", activation=1), _GELU_BOUND),
    Case("glu", "gelu-far", _far(1), Bound(relative=120 * EPS, absolute=1e-30)),
    Case("glu", "silu-1536", _pair("gate", "up", 1, 1536, activation=0), _SILU_BOUND, is_timed=True),
    Case("glu", "silu-1536-512-rows", _pair("gate", "up", 512, 1536, activation=0), _SILU_BOUND, is_timed=True),
    Case("glu", "gelu-2048-512-rows", _pair("gate", "up", 512, 2048, activation=1), _GELU_BOUND, is_timed=True),
]


def _scale(n: int, d: int, *, in_place: bool = False, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        x = strided(normal(random, n, d))
        return {"x": x, "out": x if in_place else unwritten(n, d), "factor": 0.3, **more}

    return build


SCALE = [
    Case("scale", "odd", _scale(5, 37), Bound(relative=EPS)),
    Case("scale", "in-place-some-rows", _scale(3, 600, in_place=True, n_rows=2), Bound(relative=EPS)),
]


def _softcap(n: int, d: int, *, scale: float, in_place: bool = False, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        x = normal(random, n, d, scale=scale)
        return {"x": x, "out": x if in_place else unwritten(n, d), "cap": 30.0, **more}

    return build


# tanh, a division and a multiplication.
_SOFTCAP_BOUND = Bound(relative=_EXP_ULP + 4 * EPS)

SOFTCAP = [
    Case("softcap", "bent", _softcap(5, 131, scale=25), _SOFTCAP_BOUND),
    Case("softcap", "almost-straight", _softcap(2, 131, scale=0.01), _SOFTCAP_BOUND),
    Case("softcap", "saturated", _softcap(2, 67, scale=1e6), _SOFTCAP_BOUND),
    Case("softcap", "in-place-some-rows", _softcap(3, 67, scale=20, in_place=True, n_rows=2), _SOFTCAP_BOUND),
    Case("softcap", "logits", _softcap(1, 262144, scale=10), _SOFTCAP_BOUND, is_timed=True),
]


def _angles(n: int, n_rot: int, *, magnitude: float = 1.0, last: int = 262144, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        positions = random.integers(0, last, n, dtype=np.int32)
        positions[0] = last - 1
        frequencies = (10000.0 ** (-np.arange(0, n_rot, 2) / n_rot)).astype(np.float32)
        return {
            "positions": positions,
            "frequencies": frequencies,
            "out": unwritten(n, n_rot),
            "magnitude": magnitude,
            **more,
        }

    return build


# Double precision until the last rounding.
_ANGLES_BOUND = Bound(relative=2 * EPS)

ANGLES = [
    Case("rope_angles", "far", _angles(7, 64), _ANGLES_BOUND),
    Case("rope_angles", "yarn", _angles(3, 10, magnitude=1.2079), _ANGLES_BOUND),
    Case("rope_angles", "some-rows", _angles(5, 24, n_rows=2), _ANGLES_BOUND),
    Case("rope_angles", "512-rows", _angles(512, 64), _ANGLES_BOUND, is_timed=True),
]


def _rope(n: int, h: int, d: int, n_rot: int, mode: int, *, in_place: bool = False, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        x = strided(normal(random, n, h, d))
        theta = random.uniform(0, 6.3, (n, n_rot // 2))
        angles = np.stack([np.cos(theta), np.sin(theta)], -1).reshape(n, n_rot).astype(np.float32)
        out = x if in_place else unwritten(n, h, d)
        return {"x": x, "angles": angles, "out": out, "mode": mode, **more}

    return build


# Two products and a sum: three roundings of values no larger than the pair.
_ROPE_BOUND = Bound(of_row=3 * EPS)

ROPE = [
    case
    for mode, name in enumerate(["norm", "neox"])
    for case in (
        Case("rope", f"{name}-odd", _rope(5, 3, 26, 26, mode), _ROPE_BOUND),
        Case("rope", f"{name}-partial", _rope(4, 2, 40, 24, mode), _ROPE_BOUND),
        Case("rope", f"{name}-in-place", _rope(3, 4, 64, 64, mode, in_place=True, n_rows=2), _ROPE_BOUND),
        Case("rope", f"{name}-64", _rope(1, 9, 64, 64, mode), _ROPE_BOUND, is_timed=True),
        Case("rope", f"{name}-64-512-rows", _rope(512, 9, 64, 64, mode), _ROPE_BOUND, is_timed=True),
    )
]


def _rows(index: list[int], **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        x = strided(normal(random, 9, 37))
        return {"x": x, "index": np.array(index, np.int32), "out": unwritten(len(index), 37), **more}

    return build


GATHER = [
    Case("rows", "some", _rows([8, 0, 3, 3, 5])),
    Case("rows", "true-count", _rows([8, 0, 99], n_rows=2)),
    Case("rows", "outside", _rows([8, 9, 1]), fault=FaultCode.ROW, cut=False),
    Case("rows", "negative", _rows([-1]), fault=FaultCode.ROW, cut=False),
]

# As the norm, and SiLU with two multiplications.
_GATED_BOUND = Bound(relative=_EXP_ULP + 180 * EPS)
_GATE_BOUND = Bound(relative=_EXP_ULP + 60 * EPS)

# exp, an addition and a division; a polynomial of nine terms; two multiplications.
_SOFTPLUS_BOUND = Bound(relative=_EXP_ULP + 20 * EPS)


def _far_gate(random: np.random.Generator) -> Args:
    """Where e^x vanishes or is all there is."""
    gate = np.array([[[-80, -30, -1, -1e-6, 0, 1e-6, 0.5, 20, 21, 88, 100, 1e4]]], np.float32)
    return {"x": normal(random, *gate.shape), "gate": gate, "out": unwritten(*gate.shape), "function": 1}


GATED = [
    Case("gated_norm", "odd", _gated(5, 3, 37), _GATED_BOUND),
    Case("gated_norm", "onto-x", _gated(4, 2, 64, place="x"), _GATED_BOUND),
    Case("gated_norm", "onto-gate", _gated(4, 2, 130, place="gate", n_rows=3), _GATED_BOUND),
    Case("gated_norm", "heads-512-rows", _gated(512, 16, 128), _GATED_BOUND, is_timed=True),
    Case("gate", "odd", _gated(5, 3, 37, weight=False), _GATE_BOUND),
    Case("gate", "onto-x", _gated(4, 2, 64, place="x", weight=False), _GATE_BOUND),
    Case("gate", "onto-gate", _gated(4, 1, 130, place="gate", n_rows=3, weight=False), _GATE_BOUND),
    Case("gate", "one-for-a-head", _gated(5, 3, 37, one=True, weight=False), _GATE_BOUND),
    Case("gate", "softplus", _gated(5, 3, 37, weight=False, function=1), _SOFTPLUS_BOUND),
    Case("gate", "softplus-one-for-a-head", _gated(5, 3, 37, one=True, weight=False, function=1), _SOFTPLUS_BOUND),
    Case("gate", "softplus-far", _far_gate, _SOFTPLUS_BOUND),
    Case("gate", "heads-512-rows", _gated(512, 8, 256, weight=False), _GATE_BOUND, is_timed=True),
]

CASES = [*GATED, *L2, *NORM, *POINTWISE, *SCALE, *SOFTCAP, *ANGLES, *ROPE, *GATHER]
