"""What the ops on the paged cache mean: kv_write, kv_copy, attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.oracle.blocks import Array, store, values
from luced.oracle.fault import NONE, PAGE, ROW


def kv_write(a: Any) -> int:
    n_pages, page_size = a.cell_pos.shape
    fault = NONE
    for i in range(a.n_rows):
        slot = int(a.slots[i])
        if not -1 <= slot < n_pages * page_size:
            fault = PAGE
        elif slot >= 0:
            page, cell = divmod(slot, page_size)
            store(a.k_pages, (page, slice(None), cell), a.k[i])
            store(a.v_pages, (page, slice(None), cell), a.v[i])
            a.cell_pos[page, cell] = a.positions[i]
    return fault


def kv_copy(a: Any) -> int:
    n_pages, page_size = a.cell_pos.shape
    fault = NONE
    for source, target, n_cells in a.copies[: a.n_rows].tolist():
        if not (0 <= source < n_pages and 0 <= target < n_pages and 0 <= n_cells <= page_size):
            fault = PAGE
            continue
        a.k_pages[target, :, :n_cells] = a.k_pages[source, :, :n_cells]
        a.v_pages[target, :, :n_cells] = a.v_pages[source, :, :n_cells]
        a.cell_pos[target, :n_cells] = a.cell_pos[source, :n_cells]
    return fault


def attention(a: Any) -> int:
    n_heads, n_kv = a.q.shape[1], a.k_pages.shape[1]
    kv_of_head = np.arange(n_heads) // (n_heads // n_kv)
    fault = NONE
    for i in range(a.n_rows):
        a.out[i] = 0
        if a.lse is not None:
            a.lse[i] = -np.inf if a.sinks is None else a.sinks
        if not 0 <= a.row_seq[i] < len(a.page_table):
            fault = fault or ROW
            continue
        pages, cells, bad = _seen(a, i)
        fault = fault or (PAGE if bad else NONE)
        if not len(pages):
            continue
        k = values(a.k_pages[pages, :, cells]).astype(np.float64)[:, kv_of_head]
        v = values(a.v_pages[pages, :, cells]).astype(np.float64)[:, kv_of_head]
        logits = np.einsum("chd,hd->hc", k, a.q[i].astype(np.float64)) * a.scale
        if a.softcap > 0:
            logits = a.softcap * np.tanh(logits / a.softcap)
        top = logits.max(-1) if a.sinks is None else np.maximum(logits.max(-1), a.sinks)
        weight = np.exp(logits - top[:, None])
        total = weight.sum(-1) + (0 if a.sinks is None else np.exp(a.sinks - top))
        a.out[i] = np.einsum("hc,chd->hd", weight, v) / total[:, None]
        if a.lse is not None:
            a.lse[i] = top + np.log(total)
    return fault


def _seen(a: Any, i: int) -> tuple[Array, Array, bool]:
    """Page and cell of everything that row i sees, and whether its table names a page that does not exist."""
    n_pages, page_size = a.cell_pos.shape
    if a.parents is None:
        c = np.arange(a.row_cell[i] + 1)
    else:
        ancestors, row = [], i
        while row >= 0:
            ancestors.append(int(a.row_cell[row]))
            row = int(a.parents[row])
        c = np.union1d(np.arange(a.seq_past[a.row_seq[i]]), ancestors)
    if a.cells is not None:
        c = np.intersect1d(c, a.cells[i])
    table = a.page_table[a.row_seq[i]]
    beyond = c >= len(table) * page_size
    c = c[~beyond]
    page, cell = table[c // page_size], c % page_size
    bad = bool(beyond.any() or (page < -1).any() or (page >= n_pages).any())
    there = (page >= 0) & (page < n_pages)
    page, cell = page[there], cell[there]
    distance = a.row_pos[i] - a.cell_pos[page, cell]
    seen = (distance >= 0) & ((a.window <= 0) | (distance < a.window))
    return page[seen], cell[seen], bad
