"""Calls that a GPU does in one launch have the bits of each call run alone: a row and the matrices that meet it; the
attention of one row and what prepares it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from luced.device import abi
from luced.device.library import Calls
from luced.ops import GELU_TANH, ROPE_NEOX, ROPE_NORM, SILU
from luced.oracle.blocks import q8_a
from tests.ops.attention_cases import Shape
from tests.ops.dense_cases import normal, unwritten
from tests.ops.harness import Args, Placed, context, kernel_args, machines, pack, tensor
from tests.ops.weight_cases import FLOATS, weight

CUDA = [machine for machine in machines() if machine == "cuda"]
HAS_ROOM = (80, 90, 100)  # chips with 160 KB of shared memory for a block, or more
NS = (40, 17, 8)  # outputs of the matrices: tiles are whole and not
TYPES = [(t,) * 3 for t in (abi.Type.Q4_K, abi.Type.Q8_0, abi.Type.BF16, abi.Type.F32)]
TYPES += [(abi.Type.Q4_K, abi.Type.Q4_K, abi.Type.Q6_K), (abi.Type.Q5_0, abi.Type.Q8_0, abi.Type.Q8_0)]
TYPES += [(abi.Type.F16, abi.Type.F16, abi.Type.BF16)]
Step = tuple[str, dict[str, Any]]  # an op; its arguments, where they are arrays by their names


def row_and_matrices(first: str, types: tuple[abi.Type, ...], k: int) -> tuple[Args, list[Step]]:
    """What makes a row of k values, and matrices of these types that meet it."""
    random = np.random.default_rng(k)
    arrays: Args = {"x": normal(random, 1, 1, k), "up": normal(random, 1, k), "norm": normal(random, k)}
    arrays |= {"made": unwritten(1, 1, k), "q": np.full(1, 165, q8_a(k))}
    arrays |= {"flat": arrays["x"].reshape(1, k), "row": arrays["made"].reshape(1, k)}
    steps: list[Step] = []
    if first.startswith("add"):  # a norm is added to another row, and the sum is normed
        arrays |= {"norm0": normal(random, k), "normed": unwritten(1, 1, k), "sum": unwritten(1, 1, k)}
        arrays |= {"normed_row": arrays["normed"].reshape(1, k), "sum_row": arrays["sum"].reshape(1, k)}
        steps.append(("rms_norm", {"x": "x", "weight": "norm0", "out": "normed", "eps": 1e-6}))
        a, b = ("normed_row", "up") if first == "add-first" else ("up", "normed_row")
        steps.append(("add", {"a": a, "b": b, "out": "sum_row"}))
        steps.append(("rms_norm", {"x": "sum", "weight": "norm", "out": "made", "eps": 1e-5}))
    elif first == "rms_norm":
        steps.append(("rms_norm", {"x": "x", "weight": "norm", "out": "made", "eps": 1e-5}))
    elif first == "glu":
        steps.append(("glu", {"gate": "flat", "up": "up", "out": "row", "activation": SILU}))
    row = "row" if first else "flat"
    if types[0] not in FLOATS:
        steps.append(("quantize", {"x": row, "out": "q"}))
        row = "q"
    for j, (n, type_) in enumerate(zip(NS, types, strict=True)):
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
        if n_bytes := context("cuda", 1).workspace_bytes(abi.Op[op.upper()], struct):
            kept.append(np.full(n_bytes, 0xFF, np.uint8))
            struct.workspace = tensor(kept[-1])
        calls.append((abi.Op[op.upper()], struct))
        keep += kept
    return calls, keep


def run_both_ways(machine: str, arrays: Args, steps: list[Step]) -> tuple[Placed, Placed]:
    """The arguments after the calls ran together, and after each ran alone."""
    together, apart = Placed(arrays), Placed(arrays)
    calls, keep = calls_of(together, steps)
    context(machine, 1).run(Calls(calls))
    calls, others = calls_of(apart, steps)
    for call in calls:
        context(machine, 1).run(Calls([call]))
    del keep, others
    return together, apart


@pytest.mark.gpu
@pytest.mark.parametrize("machine", CUDA)
@pytest.mark.parametrize("k", [256, 1280, 4096, 4352])
@pytest.mark.parametrize("types", TYPES, ids=lambda types: "-".join(t.name for t in types))
@pytest.mark.parametrize("first", ["rms_norm", "add", "add-first", "glu", ""])
def test_one_launch_has_the_bits_of_its_calls(machine: str, first: str, types: tuple[abi.Type, ...], k: int) -> None:
    arrays, steps = row_and_matrices(first, types, k)
    together, apart = run_both_ways(machine, arrays, steps)
    for name in ("made", "q", *(f"out{j}" for j in range(len(NS))), "normed", "sum"):
        if name in arrays:
            assert together.values[name].tobytes() == apart.values[name].tobytes(), name
    assert not np.isnan(together.values["out0"]).any()


@pytest.mark.gpu
@pytest.mark.parametrize("machine", CUDA)
@pytest.mark.parametrize("k", range(8, 1032, 40))
def test_a_norm_of_any_length_in_one_launch_has_its_bits(machine: str, k: int) -> None:
    arrays, steps = row_and_matrices("rms_norm", (abi.Type.F32,) * 3, k)
    together, apart = run_both_ways(machine, arrays, steps)
    assert together.values["made"].tobytes() == apart.values["made"].tobytes()


def row_and_gate(type_: abi.Type, k: int, n: int, in_place: bool) -> tuple[Args, list[Step]]:
    """A norm, a gate and what it lets through, and the matrix that meets that."""
    random = np.random.default_rng(k + n)
    arrays: Args = {"x": normal(random, 1, 1, k), "norm": normal(random, k), "made": unwritten(1, 1, k)}
    arrays |= {"row": arrays["made"].reshape(1, k), "gate": unwritten(1, n), "up": unwritten(1, n)}
    arrays |= {"gated": arrays["gate"] if in_place else unwritten(1, n), "bias": normal(random, n)}
    arrays |= {"w0": weight(random, type_, n, k), "w1": weight(random, type_, n, k), "out": unwritten(1, 24)}
    steps: list[Step] = [("rms_norm", {"x": "x", "weight": "norm", "out": "made", "eps": 1e-5})]
    row = "row"
    if type_ not in FLOATS:
        arrays["q"] = np.full(1, 165, q8_a(k))
        steps.append(("quantize", {"x": row, "out": "q"}))
        row = "q"
    steps.append(("matmul", {"weight": "w0", "x": row, "out": "gate", "bias": "bias"}))
    steps.append(("matmul", {"weight": "w1", "x": row, "out": "up"}))
    steps.append(("glu", {"gate": "gate", "up": "up", "out": "gated", "activation": SILU if n % 64 else GELU_TANH}))
    if type_ not in FLOATS and n % 32 == 0:
        arrays["gated_q"] = np.full(1, 165, q8_a(n))
        steps.append(("quantize", {"x": "gated", "out": "gated_q"}))
    return arrays, steps


@pytest.mark.gpu
@pytest.mark.parametrize("machine", CUDA)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])
@pytest.mark.parametrize(("k", "n"), [(256, 352), (4096, 64), (4352, 352), (512, 4800), (1280, 40)])
@pytest.mark.parametrize("type_", [abi.Type.Q4_K, abi.Type.Q6_K, abi.Type.Q8_0, abi.Type.BF16, abi.Type.F32])
def test_a_gate_in_one_launch_has_the_bits_of_its_calls(
    machine: str, type_: abi.Type, k: int, n: int, in_place: bool
) -> None:
    arrays, steps = row_and_gate(type_, k, n, in_place)
    together, apart = run_both_ways(machine, arrays, steps)
    for name in ("made", "q", "up", "gated", "gated_q", *(() if in_place else ("gate",))):
        if name in arrays:
            assert together.values[name].tobytes() == apart.values[name].tobytes(), name
    assert not np.isnan(together.values["gated"]).any()


def attention_of_a_row(shape: Shape, has_norms: bool, mode: int) -> tuple[Args, list[Step]]:
    """Norms and rope of queries and keys, the row's cell, and attention; the cache has all cells but that one."""
    random = np.random.default_rng(shape.d + shape.heads)
    arrays, (past, _), d = shape(random), shape.sequences[0], shape.d
    page, c = arrays["page_table"][0, past // shape.page_size], past % shape.page_size
    for pages in ("k_pages", "v_pages"):
        arrays[pages].view(np.uint16)[page, :, c] = 0xFFFF  # not a number, in F16 and in BF16
    arrays |= {"slots": np.array([page * shape.page_size + c], np.int32), "angles": normal(random, 1, d - 16)}
    steps: list[Step] = []
    for name, h in (("q", shape.heads), ("k", shape.kv_heads)):
        arrays |= {f"{name}_raw": normal(random, 1, h, d), f"{name}_weight": normal(random, d)}
        arrays |= {f"{name}_normed": unwritten(1, h, d), name: unwritten(1, h, d)}
        norm = {"x": f"{name}_raw", "weight": f"{name}_weight", "out": f"{name}_normed", "eps": 1e-5}
        steps += [("rms_norm", norm)] if has_norms else []
        x = f"{name}_normed" if has_norms else f"{name}_raw"
        steps.append(("rope", {"x": x, "angles": "angles", "out": name, "mode": mode}))
    arrays["v"] = normal(random, 1, shape.kv_heads, d)
    cache = ("k_pages", "v_pages", "cell_pos")
    writes = {"k": "k", "v": "v", "slots": "slots", "positions": "row_pos"}
    steps.append(("kv_write", {**writes, **{name: name for name in cache}}))
    sees = ("q", *cache, "page_table", "row_seq", "row_pos", "row_cell", "out")
    options = {name: arrays[name] for name in ("scale", "softcap", "window")}
    steps.append(("attention", {**{name: name for name in sees}, **options}))
    return arrays, steps


@pytest.mark.gpu
@pytest.mark.parametrize("machine", CUDA)
@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(((70, 1),), heads=9, kv_heads=3, d=64, dv=64, page_size=32),
        Shape(((0, 1),), heads=2, kv_heads=2, d=64, dv=64, page_size=32, kind="bf16"),
        Shape(((600, 1),), heads=8, kv_heads=2, d=128, dv=128, page_size=32, window=300, softcap=20.0),
        Shape(((511, 1),), heads=8, kv_heads=1, d=256, dv=256, page_size=32),
        Shape(((25_100, 1),), heads=4, kv_heads=1, d=128, dv=128, page_size=32),
    ],
    ids=["64", "first", "window", "256", "long"],
)
def test_attention_of_a_row_has_the_bits_of_its_calls(machine: str, has_norms: bool, shape: Shape) -> None:
    arrays, steps = attention_of_a_row(shape, has_norms, ROPE_NEOX if has_norms else ROPE_NORM)
    together, apart = run_both_ways(machine, arrays, steps)
    for name in ("out", "q", "k", "k_pages", "v_pages", "cell_pos"):
        assert together.values[name].tobytes() == apart.values[name].tobytes(), name
    assert not np.isnan(together.values["out"]).any()
    if has_norms:  # what only the launch itself needs is nowhere; other chips have no shared memory for all of these
        is_one = np.isnan(together.values["q_normed"]).all()
        assert is_one or context("cuda", 1).info().isa not in HAS_ROOM


@pytest.mark.gpu
@pytest.mark.parametrize("machine", CUDA)
@pytest.mark.parametrize("k", [288, 1280, 4096, 4352])
@pytest.mark.parametrize("first", ["rms_norm", "glu"])
def test_rows_are_quantised_as_they_are_made(machine: str, first: str, k: int) -> None:
    random = np.random.default_rng(k)
    arrays: Args = {"x": normal(random, 5, 1, k), "up": normal(random, 5, k), "norm": normal(random, k)}
    arrays |= {"made": unwritten(5, 1, k), "q": np.full(5, 165, q8_a(k))}
    arrays |= {"gate": arrays["x"].reshape(5, k), "row": arrays["made"].reshape(5, k)}
    made = {"x": "x", "weight": "norm", "out": "made", "eps": 1e-5}
    if first == "glu":
        made = {"gate": "gate", "up": "up", "out": "row", "activation": SILU}
    together, apart = run_both_ways(machine, arrays, [(first, made), ("quantize", {"x": "row", "out": "q"})])
    for name in ("made", "q"):
        assert together.values[name].tobytes() == apart.values[name].tobytes(), name
    assert not np.isnan(together.values["made"]).any()
