"""Runs a case: places its arrays in guarded memory, calls the kernel or the oracle, and compares.

A case's arguments are arrays and numbers by the names of luce.h. Arrays are in reversed ggml order (ne[0] last), may be
strided views, and may share memory: two fields that are views of one base stay so.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luced.device import abi
from luced.device.library import Calls, Context
from luced.errors import ModelError
from luced.oracle import ORACLE
from luced.oracle.blocks import DTYPES, values, values_per_block

Array = NDArray[Any]
Args = dict[str, Any]

# What an op writes, where it is not "out".
OUTPUTS = {
    "kv_write": "k_pages v_pages cell_pos",
    "kv_copy": "k_pages v_pages cell_pos",
    "attention": "out lse",
    "select": "cells",
    "conv": "state out",
    "conv_commit": "state",
    "delta": "state update out",
    "delta_commit": "state",
    "route": "ids weights",
    "count": "counts",
    "sample": "token logprob top_ids top_logprobs",
    "advance": "state emitted",
}
# The arguments that have an entry for each row, where they are not "x" and "out".
ROWS = {
    "embed": "ids out",
    "matmul": "x add out",
    "add": "a b out",
    "glu": "gate up out",
    "gated_norm": "x gate out",
    "gate": "x gate out",
    "rope_angles": "positions out",
    "rope": "x angles out",
    "kv_write": "k v slots positions",
    "kv_copy": "copies",
    "attention": "q row_seq row_pos row_cell cells lse out",
    "merge": "a b a_lse b_lse out",
    "compress": "entry_seq last out",
    "select": "q weights row_seq row_cell cells",
    "hyper_weights": "logits out",
    "hyper_mix": "x y weights out",
    "conv": "x row_seq out_slots parents out",
    "conv_commit": "x row_seq out_slots parents",
    "delta": "q k v alpha beta row_seq out_slots parents update out",
    "delta_commit": "k alpha update row_seq out_slots parents",
    "rows": "index out",
    "route": "logits tokens ids weights",
    "expert_matmul": "x ids out",
    "combine": "x weights add out",
    "count": "tokens",
    "sample": "logits rows token logprob top_ids top_logprobs",
    "advance": "token",
}
# Their rows are not run in parts.
WHOLE = {"kv_copy", "conv_commit", "delta_commit", "count", "advance"}
_TYPE_IDS = {dtype: type_id for type_id, dtype in DTYPES.items()}
_GUARD_BYTES = 192


@dataclass(frozen=True)
class Bound:
    """|got - want| <= relative * |want| + of_row * (largest |want| of the row); a row is along ne[0]."""

    relative: float = 0.0
    of_row: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True)
class Case:
    """One row of the table: an op with arguments, and how near to the oracle it must come."""

    op: str
    name: str
    build: Callable[[np.random.Generator], Args]
    bound: Bound = field(default_factory=Bound)
    fault: abi.FaultCode = abi.FaultCode.NONE
    flops: float = 0.0  # operations, for the timing
    cut: bool = True  # rows are the same in calls of their own
    is_timed: bool = False

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"

    def args(self) -> Args:
        """Arguments; the same each time."""
        return self.build(np.random.default_rng(sum(map(ord, str(self)))))


class Placed:
    """A case's arguments in memory of their own, each base array between two guards."""

    def __init__(self, args: Args) -> None:
        self._buffers: dict[int, tuple[Array, Array]] = {}
        self.values = {name: self._place(v) if isinstance(v, np.ndarray) else v for name, v in args.items()}
        self._before = {key: buffer.copy() for key, (_, buffer) in self._buffers.items()}

    def _place(self, a: Array) -> Array:
        base = a
        while isinstance(base.base, np.ndarray):
            base = base.base
        if id(base) not in self._buffers:
            whole = np.frombuffer(bytearray(b"\xa5" * (base.nbytes + 2 * _GUARD_BYTES + 64)), np.uint8)
            start = -whole.ctypes.data % 64
            buffer = whole[start : start + base.nbytes + 2 * _GUARD_BYTES]
            buffer[_GUARD_BYTES : _GUARD_BYTES + base.nbytes] = np.frombuffer(base.tobytes(), np.uint8)
            self._buffers[id(base)] = base, buffer
        buffer = self._buffers[id(base)][1]
        return _same_view(a, base, buffer)

    def broken_guards(self, outputs: list[str]) -> int:
        """Bytes that changed and belong to no output."""
        n = 0
        for key, (_, buffer) in self._buffers.items():
            may_change = np.zeros_like(buffer)
            for name in outputs:
                out = self.values.get(name)
                if isinstance(out, np.ndarray) and np.shares_memory(out, buffer):
                    offset = out.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
                    cover = np.ndarray(out.shape, np.dtype((np.void, out.itemsize)), may_change, offset, out.strides)
                    cover[...] = np.frombuffer(b"\x01" * out.itemsize, cover.dtype)[0]
            n += int(((buffer != self._before[key]) & (may_change == 0)).sum())
        return n


def _same_view(a: Array, base: Array, buffer: Array) -> Array:
    offset = a.__array_interface__["data"][0] - base.__array_interface__["data"][0] + _GUARD_BYTES
    return np.ndarray(a.shape, a.dtype, buffer, offset, a.strides)


def isas() -> Iterator[abi.Isa]:
    """The instruction sets of this machine."""
    for isa in (abi.Isa.BASELINE, abi.Isa.AVX2, abi.Isa.AVX512):
        try:
            context(isa, 1)
        except ModelError:
            return
        yield isa


def machines() -> Iterator[abi.Isa | str]:
    """What this machine runs kernels on: its instruction sets, and "cuda" where there are a device and the library."""
    yield from isas()
    try:
        context("cuda", 1)
    except ModelError:
        return
    yield "cuda"


def runs(case: Case, machine: abi.Isa | str) -> bool:
    """Whether the machine has kernels for the case, whose name begins with the type of its weight, if it has one."""
    if not isinstance(machine, str):
        return True
    from tests.ops.gpu import LACKING

    return not LACKING & {case.op, case.name.partition("-")[0], str(case)}


def machine_name(machine: abi.Isa | str) -> str:
    return machine if isinstance(machine, str) else machine.name.lower()


@functools.cache
def context(machine: abi.Isa | str, n_threads: int) -> Context:
    if isinstance(machine, str):
        from tests.ops.gpu import GpuContext

        return GpuContext()
    return Context(machine, n_threads)


def tensor(a: Array | None) -> abi.Tensor:
    """An array as luce.h sees it."""
    if a is None:
        return abi.Tensor()
    ne, nb = list(a.shape[::-1]), list(a.strides[::-1])
    if a.dtype.names == ("q", "d", "sum"):
        type_id: int = abi.Type.Q8_A
        ne, nb = [a.dtype["q"].shape[0], *ne], [1, *nb]
    elif a.dtype in _TYPE_IDS:
        type_id = _TYPE_IDS[a.dtype]
        ne[0] *= values_per_block(a.dtype)
    else:
        type_id = abi.Type.U8
    while len(ne) < 4:
        ne.append(1)
        nb.append(nb[-1] * ne[-2])
    return abi.Tensor(a.ctypes.data, type_id, abi.Layout.ROWS, tuple(ne), tuple(nb))


def kernel_args(op: str, args: Args) -> tuple[ctypes.Structure, list[Any]]:
    """The op's struct, and what must live as long as it does."""
    struct = abi.ARGS[op]()
    keep: list[Any] = []
    for name, kind in struct._fields_:  # type: ignore[misc]
        value = args.get(name)
        if kind is abi.Tensor:
            setattr(struct, name, tensor(value))
        elif name == "n_rows":
            if value is not None:
                keep.append(ctypes.c_int32(value))
                struct.n_rows = ctypes.addressof(keep[-1])
        elif value is not None:  # else 0
            setattr(struct, name, value)
    return struct, keep


def prepare(context: Context, op: str, args: Args) -> tuple[Calls, list[Any]]:
    """The op as a list of one call, with a workspace full of garbage between guards."""
    struct, keep = kernel_args(op, args)
    op_id = abi.Op[op.upper()]
    if op == "matmul":
        keep.append(pack(context, struct.weight))
    n_bytes = context.workspace_bytes(op_id, struct)
    if n_bytes:
        whole = np.full(n_bytes + 2 * _GUARD_BYTES + 64, 0xFF, np.uint8)
        start = -whole.ctypes.data % 64 + _GUARD_BYTES
        struct.workspace = tensor(whole[start : start + n_bytes])
        keep += [whole, start, n_bytes]
    return Calls([(op_id, struct)]), keep


def pack(context: Context, weight: abi.Tensor) -> Array:
    """Packs a weight, if its type is packed, into the memory that it returns."""
    packed = np.full(context.packed_bytes(weight), 0xFF, np.uint8)
    if packed.size:
        context.pack(weight, packed.ctypes.data, 0, weight.ne[1])
        weight.data, weight.layout = packed.ctypes.data, abi.Layout.PACKED
    return packed


def run_kernel(context: Context, op: str, args: Args) -> abi.FaultCode:
    """Runs the op on placed arguments; asserts that it kept within its workspace."""
    calls, keep = prepare(context, op, args)
    context.run(calls)
    if len(keep) >= 3:
        whole, start, n_bytes = keep[-3:]
        assert (whole[start - _GUARD_BYTES : start] == 0xFF).all(), "wrote before its workspace"
        assert (whole[start + n_bytes :] == 0xFF).all(), "wrote beyond its workspace"
    return context.take_fault()


def outputs(op: str) -> list[str]:
    return OUTPUTS.get(op, "out").split()


def by_row(op: str) -> list[str]:
    return ROWS.get(op, "x out").split()


def run_oracle(op: str, args: Args) -> abi.FaultCode:
    """Runs the op's meaning on placed arguments."""
    names = [name for name, _ in abi.ARGS[op]._fields_]  # type: ignore[misc]
    given = dict.fromkeys(names, None) | args
    if args.get("n_rows") is None:
        given["n_rows"] = len(args[by_row(op)[0]])
    return abi.FaultCode(ORACLE[op](SimpleNamespace(**given)))


def cut_rows(case: Case, args: Args, begin: int, end: int) -> Args:
    """The same arguments for rows [begin, end) alone."""
    cut = {name: args[name][begin:end] for name in by_row(case.op) if args.get(name) is not None}
    return args | cut | {"n_rows": None}


def difference(got: Array, want: Array, bound: Bound) -> float:
    """The largest error in units of the bound: at most 1 when all is well. NaN equals NaN: what nobody wrote."""
    if got.dtype.names or got.dtype.kind in "iuV":
        if got.dtype.names and got.dtype.names != ("q", "d", "sum") and values_per_block(got.dtype) == 32:
            got, want = values(got), values(want)
        else:
            return 0.0 if got.tobytes() == want.tobytes() else float("inf")
    g, w = got.astype(np.float64), want.astype(np.float64)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    size = np.where(np.isfinite(w), np.abs(w), 0)
    row = size.max(-1, keepdims=True) if size.ndim else size
    allowed = bound.relative * size + bound.of_row * row + bound.absolute
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(same, 0, np.abs(g - w) / allowed)
    return float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(initial=0))
