"""The ops of recurrent layers: conv, delta."""

from __future__ import annotations

from dataclasses import dataclass

from luced.device.abi import HeadOrder
from luced.device.values import Value
from luced.ops.weight import Weight, check
from luced.tape import Tape

HEADS_TILED, HEADS_GROUPED = HeadOrder.TILED, HeadOrder.GROUPED


@dataclass(frozen=True)
class State:
    """One layer's recurrent states, and where this step's rows find and leave theirs."""

    conv: Value  # [C, K - 1, n_slots]
    delta: Value  # [dv, d, n_v, n_slots]
    row_seq: Value  # I32 [n]
    seq_slot: Value  # I32 [n_seqs]
    out_slots: Value  # I32 [n]


def conv(t: Tape, x: Value, weight: Weight, state: State) -> Value:
    """[C, n]: silu of the causal convolution of each channel of x [C, n] with weight [K, C]."""
    s = state
    check(weight.ne == (s.conv.ne[1] + 1, x.ne[0]) and s.conv.ne[0] == x.ne[0], "conv", x, weight.rows)
    out = t.claim(weight.name, "F32", *x.ne, rows=x.rows)
    t.append(
        "conv", x.rows, ["out"], x=x, weight=weight.rows, state=s.conv, row_seq=s.row_seq, seq_slot=s.seq_slot,
        out_slots=s.out_slots, parents=None, out=out,
    )  # fmt: skip
    return out


def delta(
    t: Tape, q: Value, k: Value, v: Value, alpha: Value, beta: Value, a: Weight, dt: Weight, state: State, order: int
) -> Value:
    """[dv, n_v, n]: the gated delta rule of q, k [d, n_k, n] and v [dv, n_v, n]; alpha and beta: n_v values a row."""
    s = state
    n_v = v.ne[1]
    alpha, beta = (g if len(g.ne) == 3 else g.split(g.ne[0]) for g in (alpha, beta))
    check(q.ne == k.ne and n_v % k.ne[1] == 0 and s.delta.ne[:3] == (v.ne[0], k.ne[0], n_v), "delta", k, v, s.delta)
    check(alpha.ne[0] * alpha.ne[1] == n_v and a.ne == dt.ne == (n_v,), "delta", alpha, a.rows, dt.rows)
    out = t.claim(f"{a.name.rpartition('.')[0]}.delta", "F32", *v.ne, rows=v.rows)
    t.append(
        "delta", v.rows, ["out"], q=q, k=k, v=v, alpha=alpha, beta=beta, a=a.rows, dt=dt.rows, state=s.delta,
        row_seq=s.row_seq, seq_slot=s.seq_slot, out_slots=s.out_slots, parents=None, update=None, out=out,
        workspace=None, scale=k.ne[0] ** -0.5, order=int(order),
    )  # fmt: skip
    return out
