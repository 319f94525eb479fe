"""Values: typed views of memory, and the calls that read and write them. What a tape records and a device compiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from luced.gguf import formats

# (values, bytes) of a block of each type: GGUF's, and ours of kernels/include/luce.h.
BLOCKS = {f.name: (f.block, f.block_bytes) for f in formats.FORMATS} | {"U8": (1, 1), "Q8_A": (32, 40)}
ALIGNMENT = 64  # of every buffer: one cache line, one AVX-512 vector


class ShapeError(ValueError):
    """Values that an op cannot join; where a model is built, its file is at fault."""


@dataclass(eq=False)
class Storage:
    """Memory that values view. `kind` says who owns it and how long it lives.

    weight: the file's bytes, or packed from them; constant: written once; input: written by the host before a step;
    output: lives across steps, and the host reads it after each; table: the host writes rows of it now and then;
    host: an input that kernels reach in the host's memory: large and rarely read; cache: lives across steps;
    activation: lives within one, its place planned by lifetime.
    """

    name: str
    kind: str
    n_bytes: int
    data: Any = None  # bytes of a constant; of a weight, as in the file
    packs: Value | None = None  # the weight, as in the file, that this storage holds in packed form
    pointer: int = 0  # where a device put it


@dataclass(frozen=True, eq=False)
class Rows:
    """A ragged dimension: at most `bound` rows, of which `counter` (I32 [1]) are there."""

    bound: int
    counter: Value


@dataclass(frozen=True, eq=False)
class Value:
    """A typed view of storage. Shapes are in ggml order: ne[0] is contiguous."""

    name: str
    storage: Storage
    type: str
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    offset: int = 0
    packed: bool = False
    rows: Rows | None = None  # of its last dimension, where that is ragged

    def split(self, n: int) -> Value:
        """[n * H, ...] seen as [n, H, ...]: heads of n values each."""
        if self.ne[0] % n:
            raise ShapeError(f"{self} is not made of heads of {n}")
        return replace(self, ne=(n, self.ne[0] // n, *self.ne[1:]), nb=(self.nb[0], n * self.nb[0], *self.nb[1:]))

    def part(self, begin: int, n: int) -> Value:
        """[n, ...]: values begin to begin + n of each of its vectors."""
        if begin + n > self.ne[0]:
            raise ShapeError(f"{self} has no {n} values from {begin} on")
        return replace(self, ne=(n, *self.ne[1:]), offset=self.offset + begin * self.nb[0])

    def head(self, i: int) -> Value:
        """[n, ...]: head i of [n, H, ...]."""
        return replace(
            self, ne=(self.ne[0], *self.ne[2:]), nb=(self.nb[0], *self.nb[2:]), offset=self.offset + i * self.nb[1]
        )

    def join(self) -> Value:
        """[n, H, ...] seen as [n * H, ...]; heads must be adjacent."""
        assert self.nb[1] == self.ne[0] * self.nb[0], (self.name, self.ne, self.nb)
        return replace(self, ne=(self.ne[0] * self.ne[1], *self.ne[2:]), nb=(self.nb[0], *self.nb[2:]))

    def __str__(self) -> str:
        return f"{self.name}:{self.type}[{','.join(map(str, self.ne))}]" + ("p" if self.packed else "")


@dataclass(frozen=True)
class Call:
    """One op with its arguments by field name of luce_<op>_args: Value, number, or None for an absent tensor."""

    op: str
    args: dict[str, Value | float | int | None]
    outs: tuple[str, ...]
    rows: Rows | None

    def values(self) -> list[Value]:
        counter = [self.rows.counter] if self.rows else []
        return [v for v in self.args.values() if isinstance(v, Value)] + counter


def aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def make_value(name: str, kind: str, dtype: str, *ne: int, data: Any = None, rows: Rows | None = None) -> Value:
    """A value that is the whole of a new storage, without gaps."""
    return Value(name, Storage(name, kind, n_bytes(dtype, ne), data), dtype, ne, strides(dtype, ne), rows=rows)


def n_bytes(dtype: str, ne: Sequence[int]) -> int:
    block, block_bytes = BLOCKS[dtype]
    assert ne[0] % block == 0, (dtype, ne)
    return math.prod(ne) // block * block_bytes


def strides(dtype: str, ne: Sequence[int]) -> tuple[int, ...]:
    """Byte strides of a tensor without gaps; of a block type, nb[0] is the bytes of a block."""
    return (BLOCKS[dtype][1], *(n_bytes(dtype, ne[:i]) for i in range(1, len(ne))))
