"""Cases of compressed cells: compress, select, merge.

Bounds: eps = 2^-24 is the rounding of one float32 operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.device.abi import FaultCode
from luced.oracle.blocks import Array, store
from tests.ops.cache_cases import DTYPES, empty_pages
from tests.ops.dense_cases import EPS, Build, normal, strided, unwritten
from tests.ops.harness import Args, Bound, Case


def _tables(random: np.random.Generator, n_cells: list[int], page_size: int) -> tuple[Array, int]:
    """A page table for each sequence, pages in any order, 9999 where nobody looks; and how many pages there are."""
    max_pages = max(-(-n // page_size) for n in n_cells) + 1
    n_pages = max_pages * len(n_cells) + 1
    order = iter(random.permutation(n_pages))
    table = np.full((len(n_cells), max_pages), 9999, np.int32)
    for s, n in enumerate(n_cells):
        table[s, : -(-n // page_size)] = [next(order) for _ in range(-(-n // page_size))]
    return table, n_pages


def _compress(
    lasts: list[tuple[int, int]], ratio: int, d: int, *, halves: bool = False, page_size: int = 16, wrong: str = "",
    **more: Any,
) -> Build:  # fmt: skip
    """`lasts`: (sequence, last token) of each entry. `halves`: tokens before the new ones count too."""

    def build(random: np.random.Generator) -> Args:
        width = 2 * d if halves else d
        n_seqs = 1 + max(s for s, _ in lasts)
        n_cells = [1 + max((last for s, last in lasts if s == seq), default=0) for seq in range(n_seqs)]
        table, n_pages = _tables(random, n_cells, page_size)
        for s in range(n_seqs):  # the window has left what is far behind
            first = min((last for seq, last in lasts if seq == s), default=0) + 1 - ratio * (1 + halves)
            table[s, : max(0, first) // page_size] = -1
        values, scores = (empty_pages(DTYPES["f32"], n_pages, 1, page_size, width) for _ in range(2))
        values[:], scores[:] = normal(random, *values.shape), normal(random, *scores.shape, scale=3)
        args: Args = {"values": values, "scores": scores, "bias": normal(random, ratio, width), "page_table": table}
        args |= {"entry_seq": np.array([s for s, _ in lasts], np.int32), "out": strided(unwritten(len(lasts), d))}
        args |= {"last": np.array([last for _, last in lasts], np.int32), **more}
        if wrong == "sequence":
            args["entry_seq"][0] = n_seqs
        if wrong == "page":
            table[lasts[0][0], lasts[0][1] // page_size] = n_pages
        return args

    return build


# The mean of 2 * ratio vectors: the error of a weight is that of its logit, some 12 eps, and of the exponential.
_MEAN_BOUND = Bound(of_row=100 * EPS)

COMPRESS = [
    Case("compress", "4", _compress([(0, 3), (0, 7), (1, 11)], 4, 40), _MEAN_BOUND),
    Case("compress", "4-halves", _compress([(0, 3), (0, 7), (1, 43), (1, 47)], 4, 37, halves=True), _MEAN_BOUND),
    Case("compress", "128", _compress([(1, 127), (0, 383)], 128, 70, page_size=128), _MEAN_BOUND),
    Case("compress", "128-pages-of-32", _compress([(0, 255), (1, 127)], 128, 20, page_size=32), _MEAN_BOUND),
    Case("compress", "8-across-pages", _compress([(0, 23), (0, 31)], 8, 16, halves=True, page_size=5), _MEAN_BOUND),
    Case("compress", "some", _compress([(0, 3), (0, 7), (0, 11)], 4, 40, n_rows=2), _MEAN_BOUND),
    Case("compress", "none", _compress([(0, 3), (0, 7)], 4, 40, n_rows=0), _MEAN_BOUND),
    Case(
        "compress", "no-such-sequence", _compress([(0, 3), (0, 7)], 4, 40, wrong="sequence"), _MEAN_BOUND,
        fault=FaultCode.ROW, cut=False,
    ),
    Case(
        "compress", "no-such-page", _compress([(0, 3), (0, 27)], 4, 40, wrong="page"), _MEAN_BOUND,
        fault=FaultCode.PAGE, cut=False,
    ),
    Case(
        "compress", "512-128", _compress([(0, 4 * w + 3) for w in range(128)], 4, 512, halves=True), _MEAN_BOUND,
        is_timed=True,
    ),
]  # fmt: skip


def _select(
    rows: list[tuple[int, int]], k: int, *, kind: str = "f32", heads: int = 5, d: int = 24, page_size: int = 16,
    equal: bool = False, stray: bool = False, **more: Any,
) -> Build:  # fmt: skip
    """`rows`: (sequence, last cell) of each. `equal`: all scores are 0 but for a few that are no number."""

    def build(random: np.random.Generator) -> Args:
        n = len(rows)
        n_seqs = 1 + max(s for s, _ in rows)
        n_cells = [1 + max((last for s, last in rows if s == seq), default=0) for seq in range(n_seqs)]
        table, n_pages = _tables(random, n_cells, page_size)
        k_pages = empty_pages(DTYPES[kind], n_pages, 1, page_size, d)
        for s, have in enumerate(n_cells):
            for c in range(have):
                store(k_pages, (table[s, c // page_size], slice(None), c % page_size), normal(random, 1, d))
        q, weights = strided(normal(random, n, heads, d)), strided(normal(random, n, heads))
        if equal:
            weights[:] = 0
        if stray:
            table[rows[0][0], rows[0][1] // page_size] = n_pages
        rows_of = {"row_seq": [s for s, _ in rows], "row_cell": [last for _, last in rows]}
        args: Args = {"q": q, "weights": weights, "k_pages": k_pages, "page_table": table}
        args |= {name: np.array(value, np.int32) for name, value in rows_of.items()}
        return args | {"cells": np.full((n, k), -9, np.int32), **more}

    return build


SELECT = [
    *(Case("select", kind, _select([(0, 90), (1, 40)], 7, kind=kind, d=32)) for kind in DTYPES),
    Case("select", "all", _select([(0, -1), (0, 0), (0, 6), (0, 7), (1, 8), (1, 30)], 8)),
    Case("select", "one", _select([(0, 50)], 1)),
    Case("select", "page-of-1", _select([(0, 50), (0, 51)], 10, page_size=1)),
    Case("select", "page-of-5", _select([(0, 50), (1, 17), (1, 18)], 9, page_size=5, heads=1)),
    Case("select", "many-heads", _select([(0, 200)], 20, heads=64, d=64, page_size=32)),
    Case("select", "equal", _select([(0, 50), (0, 51)], 10, equal=True)),
    Case("select", "some-rows", _select([(0, 30 + i) for i in range(9)], 10, n_rows=7)),
    Case("select", "no-rows", _select([(0, 30)], 10, n_rows=0)),
    Case("select", "no-such-page", _select([(0, 50), (0, 33)], 10, stray=True), fault=FaultCode.PAGE, cut=False),
    Case("select", "512-of-16384", _select([(0, 16383)], 512, heads=64, d=128, page_size=32), is_timed=True),
]


def _merge(n: int, h: int, d: int, *, place: str = "", nothing: bool = False, **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        a, b = strided(normal(random, n, h, d)), strided(normal(random, n, h, d))
        args: Args = {"a": a, "b": b, "out": strided(unwritten(n, h, d))}
        args |= {name: strided(normal(random, n, h, scale=4)) for name in ("a_lse", "b_lse")} | more
        if nothing:
            args["a_lse"][:, 0] = args["b_lse"][:, :2] = -np.inf
        return args | ({"out": args[place]} if place else {})

    return build


_MERGE_BOUND = Bound(of_row=40 * EPS)

MERGE = [
    Case("merge", "odd", _merge(5, 3, 37), _MERGE_BOUND),
    Case("merge", "onto-a", _merge(4, 2, 64, place="a", n_rows=3), _MERGE_BOUND),
    Case("merge", "onto-b", _merge(4, 2, 64, place="b"), _MERGE_BOUND),
    Case("merge", "nothing", _merge(4, 3, 20, nothing=True), _MERGE_BOUND),
    Case("merge", "64x512-1", _merge(1, 64, 512), _MERGE_BOUND, is_timed=True),
]

CASES = [*COMPRESS, *SELECT, *MERGE]
