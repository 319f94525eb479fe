"""Cases of the ops that fill the paged cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.device.abi import FaultCode
from luced.oracle.blocks import BF16, Q4_0, Q8_0, store, values_per_block
from tests.ops.dense_cases import Build, normal, strided
from tests.ops.harness import Args, Array, Case

DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": BF16}
DTYPES |= {"q8_0": Q8_0, "q4_0": Q4_0}


def empty_pages(dtype: np.dtype[Any], n_pages: int, n_kv: int, page_size: int, d: int) -> Array:
    """[n_pages, n_kv, page_size, D] full of NaN: whoever reads a cell that nobody wrote is found out."""
    n = d // values_per_block(dtype)
    n_bytes = n_pages * n_kv * page_size * n * dtype.itemsize
    # 0xFFFF is a NaN in F16 and BF16, and so is the d of a block.
    return np.full(n_bytes, 0xFF, np.uint8).view(dtype).reshape(n_pages, n_kv, page_size, n)


def filled_pages(
    random: np.random.Generator, dtype: np.dtype[Any], n_pages: int, n_kv: int, page_size: int, d: int
) -> Array:
    pages = empty_pages(dtype, n_pages, n_kv, page_size, d)
    store(pages, ..., normal(random, n_pages, n_kv, page_size, d))
    return pages


def _write(kind: str, n: int, n_kv: int, d: int, dv: int, slots: list[int] | None = None, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        n_pages, page_size = n // 8 + 3, 16
        where = random.permutation(n_pages * page_size)[:n] if slots is None else np.array(slots)
        return {
            "k": strided(normal(random, n, n_kv, d, scale=3)),
            "v": normal(random, n, n_kv, dv, scale=0.01),
            "slots": where.astype(np.int32),
            "positions": random.integers(0, 100000, n, dtype=np.int32),
            "k_pages": empty_pages(DTYPES[kind], n_pages, n_kv, page_size, d),
            "v_pages": empty_pages(DTYPES[kind], n_pages, n_kv, page_size, dv),
            "cell_pos": np.full((n_pages, page_size), -7, np.int32),
            **more,
        }

    return build


def _extremes(kind: str) -> Build:
    """Subnormals, ties, overflow, zeros."""

    def build(random: np.random.Generator) -> Args:
        args = _write(kind, 2, 1, 32, 32)(random)
        edge = [0, -0.0, 2**-24, 2**-25, 3 * 2**-25, 2**-14, 65504, 65519.996, 65520, 1e30, 1 + 2**-11, 1 + 3 * 2**-11]
        args["k"][0, 0, :12] = edge
        args["v"][0, 0, :12] = np.negative(edge)
        args["v"][1, 0] = 0
        return args

    return build


# Every conversion is exact: one rounding to nearest even.
WRITE = [
    case
    for kind in DTYPES
    for case in (
        Case("kv_write", f"{kind}-scattered", _write(kind, 11, 3, 64, 32)),
        Case("kv_write", f"{kind}-nowhere", _write(kind, 4, 2, 32, 64, [5, -1, 20, -1])),
        Case("kv_write", f"{kind}-some-rows", _write(kind, 4, 2, 32, 32, [5, 3, 20, -1], n_rows=2)),
        Case("kv_write", f"{kind}-extremes", _extremes(kind)),
        Case("kv_write", f"{kind}-one", _write(kind, 1, 3, 64, 64), is_timed=True),
        Case("kv_write", f"{kind}-512", _write(kind, 512, 3, 64, 64), is_timed=True),
    )
    if case.name not in ("q8_0-extremes", "q4_0-extremes")
] + [
    Case("kv_write", "f16-odd", _write("f16", 5, 3, 24, 37)),
    Case("kv_write", "bf16-odd", _write("bf16", 5, 1, 1, 40)),
    Case("kv_write", "bad-slot", _write("f16", 3, 2, 8, 8, [5, 48, 7]), fault=FaultCode.PAGE, cut=False),
    Case("kv_write", "bad-negative-slot", _write("f16", 3, 2, 8, 8, [5, -2, 7]), fault=FaultCode.PAGE, cut=False),
]


def _copy(kind: str, copies: list[list[int]], **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        return {
            "copies": np.array(copies, np.int32),
            "k_pages": filled_pages(random, DTYPES[kind], 6, 3, 16, 64),
            "v_pages": filled_pages(random, DTYPES[kind], 6, 3, 16, 32),
            "cell_pos": random.integers(0, 1000, (6, 16), dtype=np.int32),
            **more,
        }

    return build


COPY = [
    *(Case("kv_copy", kind, _copy(kind, [[0, 3, 7], [1, 4, 16], [2, 5, 0]])) for kind in DTYPES),
    Case("kv_copy", "one-after-the-other", _copy("f16", [[0, 1, 5], [1, 2, 9], [2, 0, 3]])),
    Case("kv_copy", "some-rows", _copy("f16", [[0, 1, 5], [9, 9, 9]], n_rows=1)),
    Case("kv_copy", "bad-page", _copy("f16", [[0, 6, 5], [1, 2, 9]]), fault=FaultCode.PAGE),
    Case("kv_copy", "too-many-cells", _copy("f16", [[0, 1, 17]]), fault=FaultCode.PAGE),
]

CASES = [*WRITE, *COPY]
