"""Cases of the ops on recurrent state: prompts, single tokens, batches, draft trees, states stored on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from luced.device.abi import FaultCode
from tests.ops.dense_cases import EPS, normal, strided, unwritten
from tests.ops.harness import Args, Array, Bound, Case


@dataclass(frozen=True)
class Rows:
    """(whether it has a state, rows of this step) of each sequence. Every sequence's last row is stored, and with
    `checkpoints` one in the middle too. A new sequence gets a slot full of NaN: it must not be read."""

    sequences: tuple[tuple[bool, int], ...] = ((True, 7),)
    tree: bool = False
    checkpoints: bool = False
    stored: bool = True
    in_place: bool = True
    spare_rows: int = 0  # beyond n_rows

    @property
    def n(self) -> int:
        return sum(rows for _, rows in self.sequences)

    def args(self, random: np.random.Generator, *state_shape: int) -> Args:
        n_seqs = len(self.sequences)
        states = np.full((3 * n_seqs + 1, *state_shape), np.nan, np.float32)
        slots = random.permutation(len(states)).astype(np.int32)
        seq_slot = np.full(n_seqs + 1, 99, np.int32)  # the last sequence has no rows
        row_seq: list[int] = []
        out_slots: list[int] = []
        parents: list[int] = []
        for s, (has_state, n_rows) in enumerate(self.sequences):
            begin = len(row_seq)
            seq_slot[s] = slots[s] if has_state else -1
            if has_state:
                states[slots[s]] = normal(random, *state_shape)
            out = [-1] * n_rows
            if self.stored:
                out[-1] = int(slots[s] if self.in_place else slots[n_seqs + s])
            if self.checkpoints and n_rows > 1:
                out[n_rows // 2 - 1] = int(slots[2 * n_seqs + s])
            tree = [-1 if r == 0 else int(random.integers(-1, r)) for r in range(n_rows)]
            parents += [p if p < 0 else p + begin for p in tree]
            row_seq += [s] * n_rows
            out_slots += out
        args: Args = {"state": states, "seq_slot": seq_slot, "n_rows": self.n - self.spare_rows}
        args |= {"row_seq": np.array(row_seq, np.int32), "out_slots": np.array(out_slots, np.int32)}
        return args | ({"parents": np.array(parents, np.int32)} if self.tree else {})


@dataclass(frozen=True)
class Conv:
    rows: Rows = Rows()
    channels: int = 37
    taps: int = 4

    def __call__(self, random: np.random.Generator) -> Args:
        args = self.rows.args(random, self.taps - 1, self.channels)
        n = self.rows.n
        return args | {
            "x": strided(normal(random, n, self.channels)),
            "weight": normal(random, self.channels, self.taps),
            "out": strided(unwritten(n, self.channels)),
        }


@dataclass(frozen=True)
class Delta:
    """Keys have length 1, as a layer's do."""

    rows: Rows = Rows()
    n_k: int = 2
    n_v: int = 6
    d: int = 24
    dv: int = 40
    grouped: bool = False
    update: bool = False

    def __call__(self, random: np.random.Generator) -> Args:
        n, r = self.rows.n, self.n_v // self.n_k
        args = self.rows.args(random, self.n_v, self.d, self.dv)
        q, k = (_unit(normal(random, n, self.n_k, self.d)) for _ in range(2))
        gates = normal(random, n, self.n_k, 2 * r)  # as ssm_ba makes them
        args |= {"q": strided(q), "k": k, "v": strided(normal(random, n, self.n_v, self.dv))}
        args |= {"beta": gates[..., :r], "alpha": gates[..., r:], "a": -np.exp(normal(random, self.n_v))}
        args |= {"dt": normal(random, self.n_v), "out": unwritten(n, self.n_v, self.dv)}
        if self.update:
            args["update"] = strided(unwritten(n, self.n_v, self.dv))
        return args | {"scale": self.d**-0.5, "order": int(self.grouped)}

    @property
    def flops(self) -> float:
        return 7.0 * self.rows.n * self.n_v * self.d * self.dv


def _unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(-1, keepdims=True)), np.float32)


def _commit(delta: Delta) -> Any:
    def build(random: np.random.Generator) -> Args:
        args = delta(random)
        args["update"] = normal(random, *args["v"].shape)
        return {name: args[name] for name in args if name not in ("q", "v", "beta", "out", "scale")}

    return build


def _conv_commit(conv: Conv) -> Any:
    def build(random: np.random.Generator) -> Args:
        args = conv(random)
        return {name: args[name] for name in args if name not in ("weight", "out")}

    return build


def _with(build: Any, **changes: Any) -> Any:
    """Arguments with one element replaced: field=(index, value)."""

    def changed(random: np.random.Generator) -> Args:
        args: Args = build(random)
        for name, (index, value) in changes.items():
            args[name][index] = value
        return args

    return changed


ROWS = {
    "prompt": Rows(((False, 29),)),
    "goes-on": Rows(((True, 9),)),
    "token": Rows(((True, 1),)),
    "first-token": Rows(((False, 1),)),
    "batch": Rows(((True, 1), (False, 5), (True, 3), (True, 1))),
    "elsewhere": Rows(((True, 5), (True, 1)), in_place=False),
    "checkpoints": Rows(((True, 8), (False, 3), (True, 2)), checkpoints=True),
    "nowhere": Rows(((True, 5), (True, 1)), stored=False),
    "some-rows": Rows(((True, 5), (False, 6)), spare_rows=4),
    "tree": Rows(((True, 21),), tree=True),
    "trees": Rows(((True, 9), (False, 5), (True, 1)), tree=True, checkpoints=True),
    "tree-elsewhere": Rows(((True, 9), (True, 4)), tree=True, in_place=False),
}
# K products, an exp and a division; near 0 the sum cancels.
_CONV_BOUND = Bound(relative=30 * EPS, of_row=10 * EPS)
# Two chains of d products for each row, of which what remains after the decay goes on.
_DELTA_BOUND = Bound(of_row=400 * EPS)
_PROMPT, _TREE, _BAD = Rows(((False, 512),)), ROWS["trees"], Rows(((True, 3), (True, 2)))

CONV = [
    *(Case("conv", name, Conv(rows), _CONV_BOUND, cut=False) for name, rows in ROWS.items()),
    Case("conv", "wide", Conv(Rows(((True, 3),)), 300), _CONV_BOUND, cut=False),
    Case("conv", "one-channel", Conv(ROWS["checkpoints"], 1), _CONV_BOUND, cut=False),
    Case("conv", "two-taps", Conv(ROWS["batch"], taps=2), _CONV_BOUND, cut=False),
    Case("conv", "seven-taps", Conv(ROWS["trees"], 70, 7), _CONV_BOUND, cut=False),
    Case("conv", "bad-slot", _with(Conv(_BAD), seq_slot=(1, 7)), _CONV_BOUND, FaultCode.PAGE, cut=False),
    Case("conv", "bad-sequence", _with(Conv(_BAD), row_seq=(slice(3, 5), 3)), _CONV_BOUND, FaultCode.ROW, cut=False),
    Case("conv", "qwen35-token", Conv(ROWS["token"], 6144), _CONV_BOUND, cut=False, is_timed=True),
    Case("conv", "qwen35-512", Conv(_PROMPT, 6144), _CONV_BOUND, cut=False, is_timed=True),
    *(Case("conv_commit", name, _conv_commit(Conv(rows))) for name, rows in ROWS.items()),
]
_QWEN35 = Delta(n_k=16, n_v=16, d=128, dv=128)
DELTA = [
    *(Case("delta", name, Delta(rows, update=rows.tree), _DELTA_BOUND, cut=False) for name, rows in ROWS.items()),
    Case("delta", "grouped", Delta(ROWS["batch"], grouped=True, update=True), _DELTA_BOUND, cut=False),
    Case("delta", "one-value", Delta(ROWS["trees"], 1, 1, 1, 1), _DELTA_BOUND, cut=False),
    Case("delta", "odd-heads", Delta(ROWS["checkpoints"], 3, 3, 37, 29), _DELTA_BOUND, cut=False),
    Case("delta", "wide", Delta(ROWS["batch"], 1, 2, 128, 128), _DELTA_BOUND, cut=False),
    Case("delta", "wider", Delta(ROWS["trees"], 1, 1, 40, 200), _DELTA_BOUND, cut=False),
    Case("delta", "bad-slot", _with(Delta(_BAD), out_slots=(1, -2)), _DELTA_BOUND, FaultCode.PAGE, cut=False),
    Case(
        "delta",
        "bad-parent",
        _with(Delta(replace(_BAD, tree=True)), parents=(4, 1)),
        _DELTA_BOUND,
        FaultCode.ROW,
        cut=False,
    ),
    Case("delta", "qwen35-token", replace(_QWEN35, rows=ROWS["token"]), _DELTA_BOUND, cut=False, is_timed=True),
    Case(
        "delta",
        "qwen35-512",
        replace(_QWEN35, rows=_PROMPT),
        _DELTA_BOUND,
        flops=replace(_QWEN35, rows=_PROMPT).flops,
        cut=False,
        is_timed=True,
    ),
    *(
        Case("delta_commit", name, _commit(Delta(rows)), _DELTA_BOUND)
        for name, rows in ROWS.items()
        if name != "nowhere"
    ),
]

CASES = [*CONV, *DELTA]
