"""Cases of attention: prefill, decode, batches, windows, holes, draft trees, sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from luced.device.abi import FaultCode
from luced.oracle.blocks import Array, store
from tests.ops.cache_cases import DTYPES, empty_pages
from tests.ops.dense_cases import EPS, normal, strided, unwritten
from tests.ops.harness import Args, Bound, Case


@dataclass(frozen=True)
class Shape:
    """What is attended to. Each sequence is (cells before this step, rows of this step)."""

    sequences: tuple[tuple[int, int], ...]
    kind: str = "f16"
    v_kind: str = ""  # where it is not the same as that of the keys
    heads: int = 4
    kv_heads: int = 2
    d: int = 24
    dv: int = 40
    page_size: int = 16
    spread: float = 3.0  # standard deviation of the logits: no softmax is flat
    softcap: float = 0.0
    window: int = 0
    sinks: bool = False
    hole: bool = False  # the second page of each sequence is gone
    gap: int = 0  # logical positions jump by this much in the middle
    tree: bool = False  # the rows of this step are a draft tree
    chosen: int = 0  # each row looks at so many cells at most, of the past or its own
    lse: bool = False
    spare_rows: int = 0  # beyond n_rows

    def __call__(self, random: np.random.Generator) -> Args:
        args = self._cache(random)
        n = len(args["row_seq"])
        heads = normal(random, n, self.heads, self.d, scale=self.spread)
        args |= {"q": strided(heads), "out": unwritten(n, self.heads, self.dv), "scale": self.d**-0.5}
        args |= {"softcap": self.softcap, "window": self.window, "n_rows": n - self.spare_rows}
        if self.lse:
            args["lse"] = unwritten(n, self.heads)
        if self.chosen:
            args["cells"] = np.stack([self._choice(random, int(cell)) for cell in args["row_cell"]])
        if self.sinks:
            args["sinks"] = normal(random, self.heads, scale=self.spread)
        return args

    def _choice(self, random: np.random.Generator, cell: int) -> Array:
        """Ascending, then -1; also some that the row must not see."""
        some = np.sort(random.permutation(cell + 3)[: self.chosen - 1])
        return np.append(some, np.full(self.chosen - len(some), -1)).astype(np.int32)

    def _cache(self, random: np.random.Generator) -> Args:
        """Pages in any order, full of NaN where there is no cell, and the rows that look at them."""
        size = self.page_size
        max_pages = max(-(-(past + rows) // size) for past, rows in self.sequences) + 2
        n_pages = max_pages * len(self.sequences) + 1
        k_pages = empty_pages(DTYPES[self.kind], n_pages, self.kv_heads, size, self.d)
        v_pages = empty_pages(DTYPES[self.v_kind or self.kind], n_pages, self.kv_heads, size, self.dv)
        cell_pos = np.zeros((n_pages, size), np.int32)  # what is not there would be seen by its position
        order = iter(random.permutation(n_pages))
        table = np.full((len(self.sequences), max_pages), 9999, np.int32)  # never looked at
        row_seq: list[int] = []
        row_cell: list[int] = []
        row_pos: list[int] = []
        parents: list[int] = []
        for s, (past, rows) in enumerate(self.sequences):
            cells = np.arange(past + rows)
            positions = cells + np.where(cells > past // 2, self.gap, 0)
            if self.tree:
                tree = [-1 if r == 0 else int(random.integers(-1, r)) for r in range(rows)]
                for r, parent in enumerate(tree):
                    positions[past + r] = 1 + (positions[past + parent] if parent >= 0 else past + self.gap - 1)
                parents += [-1 if p < 0 else p + len(row_seq) for p in tree]
            for j in range(-(-len(cells) // size)):
                page = next(order)
                there = cells[j * size : (j + 1) * size]
                shape = (self.kv_heads, len(there))
                store(k_pages, (page, slice(None), slice(0, len(there))), normal(random, *shape, self.d))
                store(v_pages, (page, slice(None), slice(0, len(there))), normal(random, *shape, self.dv))
                cell_pos[page, : len(there)] = positions[there]
                table[s, j] = -1 if self.hole and j == 1 else page
            row_seq += [s] * rows
            row_cell += list(range(past, past + rows))
            row_pos += positions[past:].tolist()
        rows_of = {"row_seq": row_seq, "row_cell": row_cell, "row_pos": row_pos}
        args: Args = {"k_pages": k_pages, "v_pages": v_pages, "cell_pos": cell_pos, "page_table": table}
        args |= {name: np.array(value, np.int32) for name, value in rows_of.items()}
        if self.tree:
            args["parents"] = np.array(parents, np.int32)
            args["seq_past"] = np.array([past for past, _ in self.sequences], np.int32)
        return args

    @property
    def flops(self) -> float:
        """Two multiplications and additions for each query, cell that it sees, and value."""
        seen = sum(past + r + 1 for past, rows in self.sequences for r in range(rows))
        return 2.0 * self.heads * (self.d + self.dv) * seen


# A logit of size L is a chain of D products: its error is some sqrt(D) eps L, the relative error of its weight. With D
# to 256 and L to 15 that is 250 eps; the weighted sum of values adds less.
_BOUND = Bound(of_row=400 * EPS)

_SHAPES: dict[str, Shape] = {
    **{f"{kind}-prefill": Shape(((0, 37),), kind=kind, d=32, dv=64) for kind in DTYPES},
    **{f"{kind}-decode": Shape(((200, 1),), kind=kind, d=32, dv=32) for kind in DTYPES},
    "bf16-keys-q8_0-values": Shape(((70, 9),), "bf16", "q8_0", dv=64),
    "q8_0-keys-q4_0-values": Shape(((70, 9),), "q8_0", "q4_0", d=64, dv=96),
    "first-token": Shape(((0, 1),)),
    "odd-heads": Shape(((5, 9),), heads=6, kv_heads=2, d=8, dv=37),
    "one-value": Shape(((40, 3),), d=1, dv=1),
    "many-heads": Shape(((30, 5),), heads=71, kv_heads=1, d=64, dv=64),
    "page-of-32": Shape(((70, 50),), page_size=32),
    "page-of-5": Shape(((70, 13),), page_size=5),
    "page-of-64": Shape(((300, 3),), page_size=64, d=256, dv=256, kind="bf16"),
    "blocks": Shape(((500, 40),)),
    "batch": Shape(((0, 3), (130, 1), (17, 20), (300, 1), (0, 1))),
    "some-rows": Shape(((20, 9),), spare_rows=4),
    "window": Shape(((100, 30),), window=20),
    "window-wider": Shape(((10, 30),), window=4096),
    "window-of-1": Shape(((40, 20),), window=1),
    "hole": Shape(((100, 9),), hole=True),
    "hole-and-gap-in-window": Shape(((100, 9),), hole=True, gap=30, window=50),
    "gap": Shape(((100, 9),), gap=1000),
    "softcap": Shape(((50, 9),), softcap=20.0, spread=15),
    "sinks": Shape(((50, 9),), sinks=True),
    "lse": Shape(((50, 9), (0, 3)), lse=True),
    "lse-of-nothing": Shape(((100, 9),), lse=True, chosen=1),
    "lse-and-sinks": Shape(((50, 9),), lse=True, sinks=True, heads=6, kv_heads=1),
    "lse-of-sinks": Shape(((50, 9),), lse=True, sinks=True, chosen=1),
    "lse-decode": Shape(((300, 1),), lse=True, sinks=True, heads=2, kv_heads=1),
    "chosen": Shape(((100, 9), (3, 4), (0, 1)), chosen=7, lse=True),
    "chosen-page-of-1": Shape(((60, 9),), chosen=20, page_size=1, kv_heads=1),
    "chosen-decode": Shape(((300, 1),), chosen=40, heads=8, kv_heads=1, page_size=32),
    "chosen-in-tree": Shape(((100, 13),), chosen=60, tree=True),
    "peaked": Shape(((200, 9),), spread=60),
    "draft-tree": Shape(((100, 21),), tree=True),
    "draft-trees": Shape(((100, 13), (7, 8), (0, 5)), tree=True),
    "draft-tree-in-window": Shape(((90, 21),), tree=True, window=40, gap=7),
    **{
        f"{kind}-{d}-{heads // kv_heads}-heads-share": Shape(
            ((700, 1), (30, 5), (0, 1)), kind=kind, d=d, dv=d, heads=heads, kv_heads=kv_heads, page_size=32, **more
        )
        for kind, d, heads, kv_heads, more in (
            ("f16", 64, 9, 3, {}),
            ("f16", 128, 8, 2, {"window": 300}),
            ("bf16", 128, 4, 2, {"tree": True}),
            ("bf16", 256, 4, 1, {"hole": True}),
            ("f16", 256, 2, 2, {"softcap": 20.0, "sinks": True}),
            ("f16", 64, 8, 1, {"gap": 50}),
        )
    },
    "decode-8-threads-worth": Shape(((700, 1),), heads=2, kv_heads=1),
    # A GPU makes splits of such rows longer.
    "decode-at-25100": Shape(((12_700, 1), (25_100, 1)), heads=2, kv_heads=1, d=64, dv=64, page_size=32),
}

_SMOLLM2 = Shape(((0, 512),), heads=9, kv_heads=3, d=64, dv=64, page_size=32)
_GEMMA3 = Shape(((0, 512),), heads=4, kv_heads=1, d=256, dv=256, page_size=32)
_TIMED: dict[str, Shape] = {
    "smollm2-prefill-512": _SMOLLM2,
    "smollm2-decode-at-512": Shape(((512, 1),), heads=9, kv_heads=3, d=64, dv=64, page_size=32),
    "smollm2-decode-at-4096": Shape(((4095, 1),), heads=9, kv_heads=3, d=64, dv=64, page_size=32),
    "smollm2-q8_0-decode-at-4096": Shape(((4095, 1),), "q8_0", heads=9, kv_heads=3, d=64, dv=64, page_size=32),
    "smollm2-q4_0-decode-at-4096": Shape(((4095, 1),), "q4_0", heads=9, kv_heads=3, d=64, dv=64, page_size=32),
    "smollm2-8-at-512": Shape(((512, 1),) * 8, heads=9, kv_heads=3, d=64, dv=64, page_size=32),
    "gemma3-prefill-512": _GEMMA3,
    "gemma3-decode-at-4096": Shape(((4095, 1),), heads=4, kv_heads=1, d=256, dv=256, page_size=32),
}


def _with(shape: Shape, **changes: Any) -> Any:
    """A shape's arguments with some elements replaced: field=(index, value)."""

    def build(random: np.random.Generator) -> Args:
        args = shape(random)
        for name, (index, value) in changes.items():
            a: Array = args[name]
            a[index] = value
        return args

    return build


_SMALL = Shape(((20, 3), (5, 2)))
FAULTS = [
    Case("attention", "bad-page", _with(_SMALL, page_table=((0, 0), 77)), _BOUND, FaultCode.PAGE, cut=False),
    Case("attention", "bad-negative-page", _with(_SMALL, page_table=((0, 1), -2)), _BOUND, FaultCode.PAGE, cut=False),
    Case("attention", "bad-sequence", _with(_SMALL, row_seq=(3, 2)), _BOUND, FaultCode.ROW, cut=False),
    Case("attention", "sees-nothing", _with(_SMALL, page_table=((1, 0), -1)), _BOUND),
    Case("attention", "no-cell", _with(_SMALL, row_cell=(3, -1)), _BOUND),
]

CASES = [
    *(Case("attention", name, s, _BOUND, flops=s.flops, cut=not s.tree) for name, s in _SHAPES.items()),
    *(Case("attention", name, s, _BOUND, flops=s.flops, is_timed=True) for name, s in _TIMED.items()),
    *FAULTS,
]
