"""The ops on the paged cache: kv_write, kv_copy, attention, and those on compressed cells."""

from __future__ import annotations

from dataclasses import dataclass

from luced.device.values import Value
from luced.ops.weight import Weight, check
from luced.tape import Tape


@dataclass(frozen=True)
class Entries:
    """The compressed cells that this step completes, `ratio` tokens each."""

    ratio: int
    seq: Value  # I32 [m]
    first: Value  # I32 [m]: position of the first token of each
    last: Value


@dataclass(frozen=True)
class Cache:
    """One layer's part of a cache group, and where this step's rows are in it."""

    k_pages: Value  # [D, page_size, n_kv, n_pages]
    v_pages: Value
    cell_pos: Value  # I32 [page_size, n_pages]
    page_table: Value  # I32 [max_pages, n_seqs]
    slots: Value  # I32 [n]; of compressed cells [m]
    row_seq: Value
    row_pos: Value
    row_cell: Value
    window: int  # 0: none
    entries: Entries | None = None  # of compressed cells


def kv_write(t: Tape, k: Value, v: Value, cache: Cache) -> None:
    """Stores k [D, n_kv, n] and v [Dv, n_kv, n] in the cells of this step's rows."""
    c = cache
    check(k.ne[:2] == (c.k_pages.ne[0], c.k_pages.ne[2]), "kv_write", k, c.k_pages)
    check(v.ne[:2] == (c.v_pages.ne[0], c.v_pages.ne[2]), "kv_write", v, c.v_pages)
    positions = c.entries.last if c.entries else c.row_pos
    t.append(
        "kv_write", k.rows, [], k=k, v=v, slots=c.slots, positions=positions,
        k_pages=c.k_pages, v_pages=c.v_pages, cell_pos=c.cell_pos,
    )  # fmt: skip


def attention(t: Tape, q: Value, k: Value, v: Value, cache: Cache, scale: float, softcap: float = 0.0) -> Value:
    """[Dv, H, n]: stores k [D, n_kv, n] and v [Dv, n_kv, n], then attends q [D, H, n] over the sequence's pages."""
    kv_write(t, k, v, cache)
    return attend(t, q, cache, scale, softcap)


def attend(t: Tape, q: Value, cache: Cache, scale: float, softcap: float = 0.0) -> Value:
    """[Dv, H, n]: q [D, H, n] over the sequence's pages, in which this step's keys and values are already."""
    return _attend(t, q, cache, scale, softcap)


@dataclass(frozen=True)
class Seen:
    """What a part of the cells gave, to be merged with another part."""

    out: Value  # F32 [Dv, H, n]
    lse: Value  # F32 [H, n]


def attend_part(
    t: Tape, q: Value, cache: Cache, scale: float, cells: Value | None = None, sinks: Weight | None = None
) -> Seen:
    """As attend, over the cells [k, n] alone where they are given; a part of the softmax has sinks [H]."""
    lse = t.claim(f"{cache.k_pages.name}.lse", "F32", *q.ne[1:], rows=q.rows)
    return Seen(_attend(t, q, cache, scale, 0.0, cells, sinks, lse), lse)


def merge(t: Tape, a: Seen, b: Seen) -> Value:
    """[Dv, H, n]: the attention over what both saw."""
    out = t.claim(f"{a.out.name}.merge", "F32", *a.out.ne, rows=a.out.rows)
    t.append("merge", a.out.rows, ["out"], a=a.out, b=b.out, a_lse=a.lse, b_lse=b.lse, out=out)
    return out


def compress(t: Tape, tokens: Cache, bias: Weight, made: Cache) -> Value:
    """[D, m]: what the cells of `made` that this step completes are made of: the vectors (keys) and scores (values) of
    `tokens`, and bias [W, ratio]."""
    entries, d = made.entries, made.k_pages.ne[0]
    assert entries is not None, "a group of compressed cells"
    check(bias.ne[0] == tokens.k_pages.ne[0] and bias.ne[0] in (d, 2 * d), "compress", bias.rows, tokens.k_pages)
    check(bias.ne[1] == entries.ratio, "compress", bias.rows)
    out = t.claim(bias.name, "F32", d, entries.last.ne[0], rows=entries.last.rows)
    t.append(
        "compress", out.rows, ["out"], values=tokens.k_pages, scores=tokens.v_pages, bias=bias.rows,
        page_table=tokens.page_table, entry_seq=entries.seq, last=entries.last, out=out,
    )  # fmt: skip
    return out


def select(t: Tape, q: Value, weights: Value, cache: Cache, k: int) -> Value:
    """I32 [k, n]: the cells whose keys q [D, H, n] likes best, by weights [H, n]."""
    check(q.ne[0] == cache.k_pages.ne[0] and weights.ne == q.ne[1:], "select", q, weights, cache.k_pages)
    out = t.claim(f"{q.name}.cells", "I32", k, q.ne[2], rows=q.rows)
    t.append(
        "select", q.rows, ["cells"], q=q, weights=weights, k_pages=cache.k_pages, page_table=cache.page_table,
        row_seq=cache.row_seq, row_cell=cache.row_cell, cells=out, workspace=None,
    )  # fmt: skip
    return out


def _attend(
    t: Tape, q: Value, cache: Cache, scale: float, softcap: float,
    cells: Value | None = None, sinks: Weight | None = None, lse: Value | None = None,
) -> Value:  # fmt: skip
    c, sink = cache, sinks.rows if sinks else None
    check(q.ne[0] == c.k_pages.ne[0] and q.ne[1] % c.k_pages.ne[2] == 0, "attention", q, c.k_pages)
    check(sink is None or sink.ne == (q.ne[1],), "attention", q, sink)
    out = t.claim(f"{q.name.removesuffix('.rope')}.attention", "F32", c.v_pages.ne[0], *q.ne[1:], rows=q.rows)
    t.append(
        "attention", q.rows, ["out"], q=q, k_pages=c.k_pages, v_pages=c.v_pages, cell_pos=c.cell_pos,
        page_table=c.page_table, row_seq=c.row_seq, row_pos=c.row_pos, row_cell=c.row_cell, seq_past=None,
        parents=None, cells=cells, sinks=sink, lse=lse, out=out, workspace=None, scale=scale, softcap=softcap,
        window=c.window,
    )  # fmt: skip
    return out


def kv_copy(t: Tape, copies: Value, cache: Cache) -> None:
    """Copies pages of one layer: copies I32 [3, n] of (src, dst, n_cells)."""
    pages = {"k_pages": cache.k_pages, "v_pages": cache.v_pages, "cell_pos": cache.cell_pos}
    t.append("kv_copy", copies.rows, [], copies=copies, **pages)
