"""luce_pack: its size, its parts, and what it and matmul refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from luced.device import abi
from luced.errors import EngineError, ModelError
from tests.ops.harness import Array, context, kernel_args, run_kernel, tensor
from tests.ops.weight_cases import FLOATS, QUANTISED, activations, weight

ISA = abi.Isa.BASELINE  # every instruction set packs alike
# Types whose points of a lattice are spelled out in tiles: bytes for each one in the file.
SPELLED_OUT = {"IQ2_XXS": 1.61, "IQ2_XS": 1.55, "IQ2_S": 1.4, "IQ3_XXS": 1.41, "IQ3_S": 1.26}


def _packed(raw: Array, cuts: list[int], n_threads: int) -> bytes:
    packed = np.full(context(ISA, n_threads).packed_bytes(tensor(raw)), 0xA5, np.uint8)
    for begin, end in itertools.pairwise(cuts):
        context(ISA, n_threads).pack(tensor(raw), packed.ctypes.data, begin, end)
    return packed.tobytes()


@pytest.mark.parametrize("type_", [*FLOATS, *QUANTISED], ids=lambda type_: type_.name)
def test_packed_in_parts_is_packed_at_once(type_: abi.Type) -> None:
    raw = weight(np.random.default_rng(0), type_, 53, 512)
    assert _packed(raw, [0, 16, 48, 53], 2) == _packed(raw, [0, 53], 1)


@pytest.mark.parametrize("type_", [*FLOATS, *QUANTISED], ids=lambda type_: type_.name)
def test_packed_size_is_near_the_files(type_: abi.Type) -> None:
    raw = weight(np.random.default_rng(0), type_, 64, 4096)
    assert raw.nbytes <= context(ISA, 1).packed_bytes(tensor(raw)) <= SPELLED_OUT.get(type_.name, 1.04) * raw.nbytes


@pytest.mark.parametrize(("begin", "end"), [(8, 32), (0, 54), (-16, 16), (32, 16)])
def test_rows_outside_the_weight_are_refused(begin: int, end: int) -> None:
    raw = weight(np.random.default_rng(0), abi.Type.Q4_0, 53, 64)
    with pytest.raises(EngineError, match="multiple of 16"):
        context(ISA, 1).pack(tensor(raw), 0, begin, end)


def test_other_types_are_refused() -> None:
    with pytest.raises(ModelError, match="no weight type"):
        context(ISA, 1).packed_bytes(tensor(np.zeros((16, 32), np.int32)))


def test_matmul_refuses_what_does_not_meet() -> None:
    random = np.random.default_rng(0)
    out = np.zeros((3, 16), np.float32)
    quantised, plain = weight(random, abi.Type.Q4_0, 16, 64), weight(random, abi.Type.F32, 16, 64)
    x = activations(random, 3, 64)
    struct, keep = kernel_args("matmul", {"weight": quantised, "x": x, "out": out})
    with pytest.raises(ModelError, match="packed first"):
        context(ISA, 1).workspace_bytes(abi.Op.MATMUL, struct)
    with pytest.raises(ModelError, match="meets F32"):
        run_kernel(context(ISA, 1), "matmul", {"weight": plain, "x": x, "out": out})
    with pytest.raises(EngineError, match=r"x is \[K, n\]"):
        run_kernel(context(ISA, 1), "matmul", {"weight": plain, "x": np.zeros((3, 63), np.float32), "out": out})
    del keep


def test_what_is_not_finite_stays_in_its_block() -> None:
    random = np.random.default_rng(0)
    clean = random.standard_normal((2, 96)).astype(np.float32)
    dirty = clean.copy()
    dirty[0, 40], dirty[1, 41] = np.nan, np.inf
    results = []
    for x in (clean, dirty):
        out = activations(random, 2, 96)
        run_kernel(context(ISA, 1), "quantize", {"x": x, "out": out})
        results.append(out)
    for field, per_block in (("q", 32), ("d", 1), ("sum", 2)):
        a, b = (r[field].reshape(2, 3, per_block)[:, [0, 2]] for r in results)
        np.testing.assert_array_equal(a, b)
