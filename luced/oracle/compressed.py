"""What the ops on compressed cells mean: compress, select, merge. float64 inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.oracle.blocks import Array, values
from luced.oracle.fault import NONE, PAGE, ROW


def compress(a: Any) -> int:
    (width, ratio), d = a.bias.T.shape, a.out.shape[1]
    fault = NONE
    for j in range(a.n_rows):
        a.out[j] = 0
        if not 0 <= a.entry_seq[j] < len(a.page_table):
            fault = fault or ROW
            continue
        end = int(a.last[j]) + 1
        tokens = np.arange(max(end - width // d * ratio, 0), end)
        pages, cells = _places(a.page_table[a.entry_seq[j]], tokens, a.values)
        if (pages < 0).any():
            fault = fault or PAGE
            continue
        scores = a.scores[pages, 0, cells].astype(np.float64) + a.bias[tokens % ratio]
        vectors = a.values[pages, 0, cells].astype(np.float64)
        if width > d:  # the first half of what comes before, the second half of what is new
            before = (tokens < end - ratio)[:, None]
            scores = np.where(before, scores[:, :d], scores[:, d:])
            vectors = np.where(before, vectors[:, :d], vectors[:, d:])
        weights = np.exp(scores - scores.max(0))
        a.out[j] = (weights * vectors).sum(0) / weights.sum(0)
    return fault


def select(a: Any) -> int:
    fault, k, most = NONE, a.cells.shape[1], a.page_table.shape[1] * a.k_pages.shape[2]
    for i in range(a.n_rows):
        a.cells[i] = -1
        if not 0 <= a.row_seq[i] < len(a.page_table):
            fault = fault or ROW
            continue
        n = int(a.row_cell[i]) + 1
        fault = fault or (PAGE if n > most else NONE)
        cells = np.arange(min(n, most))
        if len(cells) > k:
            pages, places = _places(a.page_table[a.row_seq[i]], cells, a.k_pages)
            fault = fault or (PAGE if (pages < 0).any() else NONE)
            keys = values(a.k_pages[pages, 0, places]).astype(np.float64)
            dots = np.fmax(keys @ a.q[i].astype(np.float64).T, 0)
            scores = np.nan_to_num(dots @ a.weights[i].astype(np.float64), nan=-np.inf)
            scores[pages < 0] = -np.inf
            cells = np.sort(np.lexsort((cells, -scores))[:k])
        a.cells[i, : len(cells)] = cells
    return fault


def merge(a: Any) -> int:
    n = a.n_rows
    lse = np.stack([a.a_lse[:n], a.b_lse[:n]]).astype(np.float64)
    top = lse.max(0)
    weights = np.exp(lse - np.where(np.isfinite(top), top, 0))
    weights /= np.maximum(weights.sum(0), np.finfo(np.float64).tiny)
    a.out[:n] = weights[0, ..., None] * a.a[:n] + weights[1, ..., None] * a.b[:n]
    return NONE


def _places(table: Array, cells: Array, pages: Array) -> tuple[Array, Array]:
    """Page and place in it of each cell; page -1 where there is none."""
    n_pages, page_size = pages.shape[0], pages.shape[2]
    inside = (cells >= 0) & (cells < len(table) * page_size)
    page = np.where(inside, table[np.where(inside, cells // page_size, 0)], -1)
    return np.where((page >= 0) & (page < n_pages), page, -1), cells % page_size
