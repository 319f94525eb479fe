"""Recurrent state: the same bits whatever the chunks, as a chain of a draft tree, in company, and committed later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from luced.device import abi
from tests.ops.harness import Args, Array, Placed, context, isas, run_kernel
from tests.ops.state_cases import Conv, Delta, Rows

ISAS = list(isas())
N = 66
BY_ROW = ("x", "q", "k", "v", "alpha", "beta", "row_seq", "out")
OPS: dict[str, Conv | Delta] = {
    "conv": Conv(Rows(((True, N),), stored=False), channels=150),
    "delta": Delta(Rows(((True, N),), stored=False), d=40, dv=100),
}
COMMITS = {"conv": ("x",), "delta": ("k", "alpha", "a", "dt", "update", "order")}


def arguments(op: str) -> Args:
    args = OPS[op](np.random.default_rng(5))
    args["out_slots"][-1] = args["seq_slot"][0]
    return args | {"n_rows": None}


def run(op: str, isa: abi.Isa, args: Args, n_threads: int = 1) -> dict[str, Array]:
    placed = Placed(args)
    assert run_kernel(context(isa, n_threads), op, placed.values) == abi.FaultCode.NONE
    values: dict[str, Array] = placed.values
    return values


def in_chunks(op: str, isa: abi.Isa, args: Args, sizes: list[int]) -> tuple[Array, Array]:
    """Output and state after chunks of these sizes, each of which ends in a slot that the next one goes on from."""
    state, outs, begin, slots = args["state"], [], 0, args["seq_slot"].copy()
    for j, size in enumerate(sizes):
        cut = {name: args[name][begin : begin + size] for name in BY_ROW if name in args}
        out_slots = np.full(size, -1, np.int32)
        out_slots[-1] = (slots[0] + j % 2) % len(state)  # in place, and elsewhere
        got = run(op, isa, args | cut | {"state": state, "seq_slot": slots, "out_slots": out_slots}, 1 + j % 2)
        state, slots = got["state"], np.array([out_slots[-1], 99], np.int32)
        outs.append(got["out"])
        begin += size
    return np.concatenate(outs), state[slots[0]]


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name.lower())
@pytest.mark.parametrize("op", OPS)
def test_chunks_change_no_bit(op: str, isa: abi.Isa) -> None:
    args = arguments(op)
    whole = run(op, isa, args)
    for sizes in ([1] * N, [7] * 9 + [3], [33, 33], [64, 2], [1, 64, 1]):
        out, state = in_chunks(op, isa, args, sizes)
        assert out.tobytes() == whole["out"].tobytes(), sizes
        assert state.tobytes() == whole["state"][args["seq_slot"][0]].tobytes(), sizes


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name.lower())
@pytest.mark.parametrize("op", OPS)
def test_each_path_of_a_tree_is_that_chain(op: str, isa: abi.Isa) -> None:
    args = arguments(op)
    random = np.random.default_rng(3)
    parents = np.array([int(random.integers(max(-1, i - 4), i)) for i in range(N)], np.int32)
    tree = run(op, isa, args | {"parents": parents, "out_slots": np.full(N, -1, np.int32)}, 2)
    assert tree["state"].tobytes() == args["state"].tobytes(), "rows of a draft leave no trace"
    for last in (0, 1, 17, N - 1):
        path = [last]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        cut = {name: args[name][path] for name in BY_ROW if name in args}
        out_slots = np.full(len(path), -1, np.int32)
        out_slots[-1] = args["seq_slot"][0]
        chain = run(op, isa, args | cut | {"out_slots": out_slots})
        assert chain["out"].tobytes() == np.ascontiguousarray(tree["out"][path]).tobytes()
        # What is committed after the step is what the step would have stored.
        kept = {name: args.get(name) for name in (*COMMITS[op], "state", "row_seq", "seq_slot")}
        if op == "delta":
            update = np.full_like(args["v"], np.nan)
            kept["update"] = run(op, isa, args | {"parents": parents, "update": update})["update"]
        rows = np.full(N, -1, np.int32)
        rows[last] = args["seq_slot"][0]
        later: dict[str, Any] = run(f"{op}_commit", isa, kept | {"parents": parents, "out_slots": rows}, 2)
        assert later["state"].tobytes() == chain["state"].tobytes()
