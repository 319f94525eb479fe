"""The ops on the paged cache: kv_write, kv_copy, attention."""

from __future__ import annotations

from dataclasses import dataclass

from luced.device.values import Value
from luced.ops.weight import check
from luced.tape import Tape


@dataclass(frozen=True)
class Cache:
    """One layer's part of a cache group, and where this step's rows are in it."""

    k_pages: Value  # [D, page_size, n_kv, n_pages]
    v_pages: Value
    cell_pos: Value  # I32 [page_size, n_pages]
    page_table: Value  # I32 [max_pages, n_seqs]
    slots: Value  # I32 [n]
    row_seq: Value
    row_pos: Value
    row_cell: Value
    window: int  # 0: none


def kv_write(t: Tape, k: Value, v: Value, cache: Cache) -> None:
    """Stores k [D, n_kv, n] and v [Dv, n_kv, n] in the cells of this step's rows."""
    c = cache
    check(k.ne[:2] == (c.k_pages.ne[0], c.k_pages.ne[2]), "kv_write", k, c.k_pages)
    check(v.ne[:2] == (c.v_pages.ne[0], c.v_pages.ne[2]), "kv_write", v, c.v_pages)
    t.append(
        "kv_write", k.rows, [], k=k, v=v, slots=c.slots, positions=c.row_pos,
        k_pages=c.k_pages, v_pages=c.v_pages, cell_pos=c.cell_pos,
    )  # fmt: skip


def attention(t: Tape, q: Value, k: Value, v: Value, cache: Cache, scale: float, softcap: float = 0.0) -> Value:
    """[Dv, H, n]: stores k [D, n_kv, n] and v [Dv, n_kv, n], then attends q [D, H, n] over the sequence's pages."""
    kv_write(t, k, v, cache)
    return attend(t, q, cache, scale, softcap)


def attend(t: Tape, q: Value, cache: Cache, scale: float, softcap: float = 0.0) -> Value:
    """[Dv, H, n]: q [D, H, n] over the sequence's pages, in which this step's keys and values are already."""
    c = cache
    check(q.ne[0] == c.k_pages.ne[0] and q.ne[1] % c.k_pages.ne[2] == 0, "attention", q, c.k_pages)
    out = t.claim(f"{q.name.removesuffix('.rope')}.attention", "F32", c.v_pages.ne[0], *q.ne[1:], rows=q.rows)
    t.append(
        "attention", q.rows, ["out"], q=q, k_pages=c.k_pages, v_pages=c.v_pages, cell_pos=c.cell_pos,
        page_table=c.page_table, row_seq=c.row_seq, row_pos=c.row_pos, row_cell=c.row_cell, seq_past=None,
        parents=None, sinks=None, out=out, workspace=None, scale=scale, softcap=softcap, window=c.window,
    )  # fmt: skip
    return out


def kv_copy(t: Tape, copies: Value, cache: Cache) -> None:
    """Copies pages of one layer: copies I32 [3, n] of (src, dst, n_cells)."""
    pages = {"k_pages": cache.k_pages, "v_pages": cache.v_pages, "cell_pos": cache.cell_pos}
    t.append("kv_copy", copies.rows, [], copies=copies, **pages)
