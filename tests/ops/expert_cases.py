"""Cases of the ops of a mixture of experts: route, expert_matmul, combine.

Bounds: eps = 2^-24 is the rounding of one float32 operation. Logits are far enough apart that rounding chooses nobody.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.device.abi import FaultCode, Gating, Type
from luced.oracle.blocks import DTYPES, values_per_block
from tests.ops.dense_cases import EPS, Build, normal, strided, unwritten
from tests.ops.harness import Args, Array, Bound, Case
from tests.ops.weight_cases import FLOATS, QUANTISED, activations, weight

N_VOCAB = 11


def unchosen(*shape: int) -> Array:
    """An output of ids: -9 until somebody writes it."""
    return np.full(shape, -9, np.int32)


def _logits(random: np.random.Generator, n: int, n_expert: int) -> Array:
    """Rows of distinct values, 1e-3 apart at least."""
    return random.permuted(np.tile(np.linspace(-4, 4, n_expert), (n, 1)), axis=1).astype(np.float32)


def _route(
    n: int, n_expert: int, k: int, gating: Gating, *, bias: bool = False, table: str = "", groups: int = 0, **more: Any
) -> Build:
    """`table`: "" for none, else what is wrong with it: nothing, token or expert."""

    def build(random: np.random.Generator) -> Args:
        args: Args = {
            "logits": strided(_logits(random, n, n_expert)),
            "ids": unchosen(n, k),
            "weights": unwritten(n, k),
        }
        args |= {"gating": int(gating), "n_groups": groups, "n_groups_used": groups // 2, "floor": 0.0, "scale": 1.0}
        if bias:
            args["bias"] = random.permutation(np.linspace(-1, 1, n_expert)).astype(np.float32)
        if table:
            args["table"] = np.stack([random.permutation(n_expert)[:k] for _ in range(N_VOCAB)]).astype(np.int32)
            args["tokens"] = random.integers(0, N_VOCAB, n, dtype=np.int32)
        if table == "token":
            args["tokens"][n // 2] = N_VOCAB
        if table == "expert":
            args["table"][args["tokens"][n // 2], k - 1] = n_expert
        return args | more

    return build


def _equals(random: np.random.Generator) -> Args:
    """Many experts of one score, and one that is no number."""
    logits = np.ones((2, 9), np.float32)
    logits[0, 5] = 2
    logits[1, 0] = np.nan
    args: Args = {"logits": logits, "ids": unchosen(2, 3), "weights": unwritten(2, 3), "gating": int(Gating.SIGMOID)}
    return args | {"n_groups": 0, "n_groups_used": 0, "floor": 0.0, "scale": 1.0}


def _vanishing(random: np.random.Generator) -> Args:
    """Weights whose sum is below the floor."""
    args = _route(3, 16, 4, Gating.SIGMOID, floor=2.0**-14)(random)
    return args | {"logits": args["logits"] - 30}


# softmax: e^x, a sum of N, two divisions; log1p and exp of the C library are within an ulp or two.
_ROUTE_BOUND = Bound(relative=64 * EPS)

ROUTE = [
    Case("route", "softmax", _route(5, 37, 8, Gating.SOFTMAX), _ROUTE_BOUND),
    Case("route", "softmax-normed", _route(9, 128, 8, Gating.SOFTMAX, floor=2.0**-14, n_rows=7), _ROUTE_BOUND),
    Case("route", "softmax-all", _route(3, 5, 5, Gating.SOFTMAX, scale=2.5), _ROUTE_BOUND),
    Case("route", "sigmoid-bias", _route(6, 64, 6, Gating.SIGMOID, bias=True, floor=1e-20, scale=2.5), _ROUTE_BOUND),
    Case("route", "sigmoid-groups", _route(8, 64, 6, Gating.SIGMOID, bias=True, groups=8, floor=1e-20), _ROUTE_BOUND),
    Case("route", "groups-of-one", _route(8, 8, 3, Gating.SIGMOID, groups=8), _ROUTE_BOUND),
    Case("route", "chosen-softmax", _route(5, 32, 4, Gating.SOFTMAX_CHOSEN, bias=True), _ROUTE_BOUND),
    Case("route", "sqrt-softplus", _route(5, 33, 6, Gating.SQRT_SOFTPLUS, bias=True, floor=1e-20), _ROUTE_BOUND),
    Case("route", "hash", _route(9, 33, 6, Gating.SQRT_SOFTPLUS, table="right", floor=1e-20, scale=1.5), _ROUTE_BOUND),
    Case("route", "equals", _equals, _ROUTE_BOUND),
    Case("route", "below-the-floor", _vanishing, _ROUTE_BOUND),
    Case("route", "no-rows", _route(4, 16, 2, Gating.SOFTMAX, n_rows=0), _ROUTE_BOUND),
    Case(
        "route", "no-such-token", _route(9, 33, 6, Gating.SIGMOID, table="token"), _ROUTE_BOUND,
        fault=FaultCode.TOKEN, cut=False,
    ),
    Case(
        "route", "no-such-expert", _route(9, 33, 6, Gating.SIGMOID, table="expert"), _ROUTE_BOUND,
        fault=FaultCode.ROW, cut=False,
    ),
    Case("route", "256-1", _route(1, 256, 8, Gating.SOFTMAX), _ROUTE_BOUND, is_timed=True),
    Case("route", "256-512", _route(512, 256, 8, Gating.SOFTMAX), _ROUTE_BOUND, is_timed=True),
]  # fmt: skip


def _choice(random: np.random.Generator, n: int, k: int, n_expert: int) -> Array:
    return np.stack([random.permutation(n_expert)[:k] for _ in range(n)]).astype(np.int32)


def _experts(
    type_: Type, k_in: int, n_out: int, n: int, *, k: int = 3, n_expert: int = 7, apart: bool = False,
    scale: bool = False, part: bool = False, stray: bool = False, **more: Any
) -> Build:  # fmt: skip
    """`apart`: an input for each expert; `part`: the weight is half of the rows of a larger one."""

    def build(random: np.random.Generator) -> Args:
        width = k_in * (k if apart else 1)
        x = strided(normal(random, n, width)) if type_ in FLOATS else activations(random, n, width)
        n_held = 2 * n_out if part else n_out
        held = weight(random, type_, n_expert * n_held, k_in)
        held = held.reshape(n_expert, n_held, -1)[:, n_held - n_out :]
        ids = _choice(random, n, k, n_expert)
        if stray:
            ids[n // 2, 1] = n_expert
        args: Args = {"weight": held, "x": x, "ids": ids, "out": strided(unwritten(n, n_out * k)), **more}
        return args | ({"scale": normal(random, n_expert)} if scale else {})

    return build


def _expert_cases(type_: Type) -> list[Case]:
    name, block = type_.name, values_per_block(DTYPES[type_])
    bound = Bound(of_row=32 * EPS)
    cases = [
        Case("expert_matmul", f"{name}-one-block", _experts(type_, max(block, 7), 17, 2), bound),
        Case(
            "expert_matmul", f"{name}-apart", _experts(type_, 3 * max(block, 128), 40, 9, apart=True, n_rows=8), bound
        ),
        Case("expert_matmul", f"{name}-scale", _experts(type_, 2 * max(block, 96), 35, 23, scale=True), bound),
        Case("expert_matmul", f"{name}-part", _experts(type_, 256, 16, 5, part=True, k=1), bound),
        Case("expert_matmul", f"{name}-no-rows", _experts(type_, 256, 5, 2, n_rows=0), bound),
    ]
    return cases


EXPERTS = [case for type_ in (*FLOATS, *QUANTISED) for case in _expert_cases(type_)]
EXPERTS += [
    Case(
        "expert_matmul", f"{type_.name}-1024x256-{n}", _experts(type_, 1024, 256, n, k=4, n_expert=8),
        Bound(of_row=32 * EPS), flops=2.0 * 1024 * 256 * 4 * n, is_timed=True,
    )
    for type_ in (Type.BF16, Type.Q8_0, Type.Q4_K, Type.Q6_K) for n in (1, 64)
] + [
    Case(
        "expert_matmul", "no-such-expert", _experts(Type.Q4_0, 64, 24, 5, stray=True), Bound(of_row=32 * EPS),
        fault=FaultCode.ROW, cut=False,
    ),
]  # fmt: skip


def _combine(n: int, k: int, d: int, *, add: str = "", **more: Any) -> Build:
    """`add`: "" for none, "apart", or "out" for the output's own place."""

    def build(random: np.random.Generator) -> Args:
        out = strided(normal(random, n, d) if add == "out" else unwritten(n, d))
        args: Args = {"x": strided(normal(random, n, k * d)), "weights": normal(random, n, k), "out": out, **more}
        return args | ({"add": out if add == "out" else normal(random, n, d)} if add else {})

    return build


_COMBINE_BOUND = Bound(of_row=16 * EPS)

COMBINE = [
    Case("combine", "odd", _combine(5, 3, 37), _COMBINE_BOUND),
    Case("combine", "add", _combine(4, 8, 600, add="apart", n_rows=3), _COMBINE_BOUND),
    Case("combine", "onto-out", _combine(3, 1, 16, add="out"), _COMBINE_BOUND),
    Case("combine", "2048-512", _combine(512, 8, 2048), _COMBINE_BOUND, is_timed=True),
]

CASES = [*ROUTE, *EXPERTS, *COMBINE]
