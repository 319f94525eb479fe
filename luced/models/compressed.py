"""Attention over compressed cells, each of which stands for `ratio` tokens: their groups, how they are made, seen."""

from __future__ import annotations

from dataclasses import dataclass

from luced.device.values import Value
from luced.models.blocks import Batch, linear
from luced.models.rope import Rope
from luced.models.spec import Group, Spec
from luced.models.weights import Block
from luced.ops import ROPE_NORM, Seen, attend_part, compress, kv_write, rms_norm, rope_angles, rope_tail, select
from luced.tape import Tape, constant

SPARSE, HEAVY = 4, 128  # tokens of a cell; rows see those sparse ones that an indexer chooses, and all heavy ones


def cell_groups(ratios: list[int], head_dim: int, index_dim: int, window: int) -> tuple[Group, ...]:
    """For layers of these ratios (0: only a window): compressed cells, the tokens in the window, and what tokens give
    to the next compressed cells: vectors and scores, two of each for a sparse cell and the one after it."""
    every = tuple(range(len(ratios)))
    sparse, heavy = (tuple(i for i in every if ratios[i] == ratio) for ratio in (SPARSE, HEAVY))
    groups = (
        Group("sparse", 0, sparse, 1, head_dim, 0, SPARSE),
        Group("heavy", 0, heavy, 1, head_dim, 0, HEAVY),
        Group("index", 0, sparse, 1, index_dim, 0, SPARSE),
        Group("window", window, every, 1, head_dim, 0),
        Group("sparse_tokens", 2 * SPARSE, sparse, 1, 2 * head_dim, 2 * head_dim, kept="F32"),
        Group("heavy_tokens", HEAVY, heavy, 1, head_dim, head_dim, kept="F32"),
        Group("index_tokens", 2 * SPARSE, sparse, 1, 2 * index_dim, 2 * index_dim, kept="F32"),
    )
    return tuple(group for group in groups if group.layers)


@dataclass(frozen=True)
class Turns:
    """Angles of the rows, those that undo them, and those of the compressed cells that this step completes."""

    there: Value
    back: Value
    made: Value


def turns(t: Tape, b: Batch, rope: Rope, name: str) -> Turns:
    """`name`: of the group of compressed cells, where there are any."""
    f = rope.frequencies()
    there, back = (constant(f"{name}.{to}", [sign * x for x in f]) for to, sign in (("there", 1), ("back", -1)))
    entries = next((cache.entries for cache in b.groups.get(name, {}).values()), None)
    positions = (b.positions, there), (b.positions, back), (entries.first if entries else b.positions, there)
    return Turns(*(rope_angles(t, at, frequencies, rope.magnitude) for at, frequencies in positions))


def far(
    t: Tape, s: Spec, blk: Block, b: Batch, i: int, h: Value, q: Value, qr: Value, angles: Turns, top_k: int
) -> Seen:
    """What queries q [D, H, n], made of h [E, n] by way of qr, see in the layer's compressed cells."""
    kind = "sparse" if i in b.groups.get("sparse", {}) else "heavy"
    make(t, s, blk, b, i, h, angles, kind, "attn_compressor")
    if kind == "heavy":
        return attend_part(t, q, b.groups[kind][i], s.attention_scale)
    make(t, s, blk, b, i, h, angles, "index", "indexer_compressor")
    keys = b.groups["index"][i]
    asked = rope_tail(t, linear(t, blk, "indexer.attn_q_b", qr).split(keys.k_pages.ne[0]), angles.there, ROPE_NORM)
    # Published scores are these over sqrt(heads) and sqrt(D), which changes no order.
    cells = select(t, asked, linear(t, blk, "indexer.proj", h), keys, top_k)
    return attend_part(t, q, b.groups[kind][i], s.attention_scale, cells)


def make(t: Tape, s: Spec, blk: Block, b: Batch, i: int, h: Value, angles: Turns, group: str, name: str) -> None:
    """Keeps what h [E, n] gives to the cells of a group, and makes those that are complete."""
    tokens, cells = b.groups[f"{group}_tokens"][i], b.groups[group][i]
    width = tokens.k_pages.ne[0]
    vectors, scores = linear(t, blk, f"{name}_kv", h), linear(t, blk, f"{name}_gate", h)
    kv_write(t, vectors.split(width), scores.split(width), tokens)
    made = compress(t, tokens, blk[f"{name}_ape.weight"], cells)
    made = rms_norm(t, made, blk[f"{name}_norm.weight"], s.eps).split(cells.k_pages.ne[0])
    made = rope_tail(t, made, angles.made, ROPE_NORM)
    kv_write(t, made, made, cells)
