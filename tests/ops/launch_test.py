"""Calls that a GPU does in one launch, a row and the matrices that meet it, have the bits of each call run alone."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from luced.device import abi
from luced.device.library import Calls
from luced.ops import SILU
from luced.oracle.blocks import q8_a
from tests.ops.dense_cases import normal, unwritten
from tests.ops.harness import Args, Placed, context, kernel_args, machines, pack
from tests.ops.weight_cases import FLOATS, weight

CUDA = [machine for machine in machines() if machine == "cuda"]
NS = (40, 17, 8)  # outputs of the matrices: tiles are whole and not
Step = tuple[str, dict[str, Any]]  # an op; its arguments, where they are arrays by their names


def row_and_matrices(first: str, type_: abi.Type, k: int) -> tuple[Args, list[Step]]:
    """What makes a row of k values, and three matrices that meet it."""
    random = np.random.default_rng(k)
    arrays: Args = {"x": normal(random, 1, 1, k), "up": normal(random, 1, k), "norm": normal(random, k)}
    arrays |= {"made": unwritten(1, 1, k), "q": np.full(1, 165, q8_a(k))}
    arrays |= {"flat": arrays["x"].reshape(1, k), "row": arrays["made"].reshape(1, k)}
    steps: list[Step] = []
    if first == "rms_norm":
        steps.append(("rms_norm", {"x": "x", "weight": "norm", "out": "made", "eps": 1e-5}))
    elif first == "glu":
        steps.append(("glu", {"gate": "flat", "up": "up", "out": "row", "activation": SILU}))
    row = "row" if first else "flat"
    if type_ not in FLOATS:
        steps.append(("quantize", {"x": row, "out": "q"}))
        row = "q"
    for j, n in enumerate(NS):
        arrays |= {f"w{j}": weight(random, type_, n, k), f"out{j}": unwritten(1, n), f"add{j}": normal(random, 1, n)}
        steps.append(("matmul", {"weight": f"w{j}", "x": row, "out": f"out{j}", **({"add": f"add{j}"} if j else {})}))
    return arrays, steps


def calls_of(placed: Placed, steps: list[Step]) -> tuple[list[tuple[abi.Op, ctypes.Structure]], list[Any]]:
    """The calls, and what must live as long as they do."""
    calls, keep = [], []
    for op, named in steps:
        args = {field: placed.values[value] if isinstance(value, str) else value for field, value in named.items()}
        struct, kept = kernel_args(op, args)
        if op == "matmul":
            kept.append(pack(context("cuda", 1), struct.weight))
        calls.append((abi.Op[op.upper()], struct))
        keep += kept
    return calls, keep


@pytest.mark.gpu
@pytest.mark.parametrize("machine", CUDA)
@pytest.mark.parametrize("k", [256, 1280, 4096, 4352])
@pytest.mark.parametrize("type_", [abi.Type.Q4_K, abi.Type.Q8_0, abi.Type.BF16, abi.Type.F32], ids=lambda t: t.name)
@pytest.mark.parametrize("first", ["rms_norm", "glu", ""])
def test_one_launch_has_the_bits_of_its_calls(machine: str, first: str, type_: abi.Type, k: int) -> None:
    arrays, steps = row_and_matrices(first, type_, k)
    together, apart = Placed(arrays), Placed(arrays)
    calls, keep = calls_of(together, steps)
    context(machine, 1).run(Calls(calls))
    calls, others = calls_of(apart, steps)
    for call in calls:
        context(machine, 1).run(Calls([call]))
    for name in ("made", "q", *(f"out{j}" for j in range(len(NS)))):
        assert together.values[name].tobytes() == apart.values[name].tobytes(), name
    assert not np.isnan(together.values["out0"]).any()
    del keep, others
