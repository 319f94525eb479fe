"""One function per op of kernels/include/luce.h: check shapes, claim the output, append the call.

Every function takes the tape first and gives the value that the op computes. Shapes in ggml order; n is the ragged
dimension, whose bound and counter come with the first value (`Value.rows`).
"""

from __future__ import annotations

from dataclasses import dataclass

from luced.device.abi import Activation, HeadOrder, RopeMode
from luced.device.values import ShapeError, Value
from luced.tape import Tape

FLOAT_TYPES = ("F32", "F16", "BF16")
SILU, GELU_TANH = Activation.SILU, Activation.GELU_TANH
HEADS_TILED, HEADS_GROUPED = HeadOrder.TILED, HeadOrder.GROUPED
ROPE_NORM, ROPE_NEOX = RopeMode.NORM, RopeMode.NEOX


@dataclass(frozen=True)
class Weight:
    """A tensor of the model: `rows` reads it as in the file, `packed` as the device's kernels like it best."""

    rows: Value
    packed: Value

    @property
    def name(self) -> str:
        return self.rows.name.removesuffix(".weight")

    @property
    def ne(self) -> tuple[int, ...]:
        return self.rows.ne


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


@dataclass(frozen=True)
class State:
    """One layer's recurrent states, and where this step's rows find and leave theirs."""

    conv: Value  # [C, K - 1, n_slots]
    delta: Value  # [dv, d, n_v, n_slots]
    row_seq: Value  # I32 [n]
    seq_slot: Value  # I32 [n_seqs]
    out_slots: Value  # I32 [n]


def embed(t: Tape, weight: Weight, ids: Value, scale: float = 1.0) -> Value:
    """[E, n]: the rows of the embedding table for ids [n], times scale."""
    out = t.claim("embed", "F32", weight.ne[0], ids.ne[0], rows=ids.rows)
    t.append("embed", ids.rows, ["out"], weight=weight.rows, ids=ids, out=out, scale=scale)
    return out


def matmul(t: Tape, weight: Weight, x: Value, bias: Weight | None = None, add: Value | None = None) -> Value:
    """[N, n]: weight [K, N] times x [K, n], plus bias [N], plus add [N, n]."""
    _check(weight.ne[0] == x.ne[0] and len(x.ne) == 2, "matmul", weight.rows, x)
    out = t.claim(weight.name, "F32", weight.ne[1], x.ne[1], rows=x.rows)
    _check(add is None or add.ne == out.ne, "matmul", weight.rows, add)
    if weight.rows.type not in FLOAT_TYPES:
        x = t.once(x, lambda: _quantize(t, x))
    b = bias.rows if bias else None
    t.append("matmul", x.rows, ["out"], weight=weight.packed, x=x, bias=b, add=add, out=out, workspace=None)
    return out


def _quantize(t: Tape, x: Value) -> Value:
    out = t.claim(x.name + ".q8", "Q8_A", *x.ne, rows=x.rows)
    t.append("quantize", x.rows, ["out"], x=x, out=out)
    return out


def rms_norm(t: Tape, x: Value, weight: Weight, eps: float, name: str = "") -> Value:
    """Same shape as x [D, n] or [D, H, n]: each D values over their root mean square, times weight [D]."""
    _check(weight.ne == (x.ne[0],), "rms_norm", weight.rows, x)
    out = t.claim(name or weight.name, "F32", *x.ne, rows=x.rows)
    a, b = (v if len(v.ne) == 3 else v.split(v.ne[0]) for v in (x, out))
    t.append("rms_norm", x.rows, ["out"], x=a, weight=weight.rows, out=b, eps=eps)
    return out


def l2_norm(t: Tape, x: Value, eps: float) -> Value:
    """[D, H, n]: each D values over the root of their sum of squares."""
    out = t.claim(f"{x.name}.l2_norm", "F32", *x.ne, rows=x.rows)
    t.append("l2_norm", x.rows, ["out"], x=x, out=out, eps=eps)
    return out


def gated_norm(t: Tape, x: Value, gate: Value, weight: Weight, eps: float) -> Value:
    """[D, H, n]: rms_norm of x times silu(gate)."""
    _check(x.ne == gate.ne and weight.ne == (x.ne[0],), "gated_norm", x, gate, weight.rows)
    out = t.claim(weight.name, "F32", *x.ne, rows=x.rows)
    t.append("gated_norm", x.rows, ["out"], x=x, gate=gate, weight=weight.rows, out=out, eps=eps)
    return out


def add(t: Tape, a: Value, b: Value) -> Value:
    """[D, n]."""
    _check(a.ne == b.ne, "add", a, b)
    out = t.claim(f"{b.name}.add", "F32", *a.ne, rows=a.rows)
    t.append("add", a.rows, ["out"], a=a, b=b, out=out)
    return out


def glu(t: Tape, gate: Value, up: Value, activation: int) -> Value:
    """[F, n]: activation(gate) * up."""
    _check(gate.ne == up.ne, "glu", gate, up)
    out = t.claim(f"{gate.name}.glu", "F32", *gate.ne, rows=gate.rows)
    t.append("glu", gate.rows, ["out"], gate=gate, up=up, out=out, activation=int(activation))
    return out


def gate(t: Tape, x: Value, gate: Value) -> Value:
    """Same shape as x [D, n] or [D, H, n]: x * sigmoid(gate), of which there is one for each value or each D values."""
    out = t.claim(f"{x.name}.gate", "F32", *x.ne, rows=x.rows)
    a, g, b = (v if len(v.ne) == 3 else v.split(v.ne[0]) for v in (x, gate, out))
    _check(g.ne[1:] == a.ne[1:] and g.ne[0] in (1, a.ne[0]), "gate", x, gate)
    t.append("gate", x.rows, ["out"], x=a, gate=g, out=b)
    return out


def softcap(t: Tape, x: Value, cap: float) -> Value:
    """[D, n]: cap * tanh(x / cap)."""
    out = t.claim(f"{x.name}.softcap", "F32", *x.ne, rows=x.rows)
    t.append("softcap", x.rows, ["out"], x=x, out=out, cap=cap)
    return out


def rope_angles(t: Tape, positions: Value, frequencies: Value, magnitude: float = 1.0) -> Value:
    """[n_rot, n]: cosine and sine of position * frequency for each of the n_rot / 2 frequencies."""
    out = t.claim(f"{frequencies.name}.angles", "F32", 2 * frequencies.ne[0], positions.ne[0], rows=positions.rows)
    t.append(
        "rope_angles", positions.rows, ["out"],
        positions=positions, frequencies=frequencies, out=out, magnitude=magnitude,
    )  # fmt: skip
    return out


def rope(t: Tape, x: Value, angles: Value, mode: int) -> Value:
    """[D, H, n]: the first n_rot values of each head rotated."""
    _check(len(x.ne) == 3 and angles.ne[0] <= x.ne[0], "rope", x, angles)
    out = t.claim(f"{x.name}.rope", "F32", *x.ne, rows=x.rows)
    t.append("rope", x.rows, ["out"], x=x, angles=angles, out=out, mode=int(mode))
    return out


def kv_write(t: Tape, k: Value, v: Value, cache: Cache) -> None:
    """Stores k [D, n_kv, n] and v [Dv, n_kv, n] in the cells of this step's rows."""
    c = cache
    _check(k.ne[:2] == (c.k_pages.ne[0], c.k_pages.ne[2]), "kv_write", k, c.k_pages)
    _check(v.ne[:2] == (c.v_pages.ne[0], c.v_pages.ne[2]), "kv_write", v, c.v_pages)
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
    _check(q.ne[0] == c.k_pages.ne[0] and q.ne[1] % c.k_pages.ne[2] == 0, "attention", q, c.k_pages)
    out = t.claim(f"{q.name.removesuffix('.rope')}.attention", "F32", c.v_pages.ne[0], *q.ne[1:], rows=q.rows)
    t.append(
        "attention", q.rows, ["out"], q=q, k_pages=c.k_pages, v_pages=c.v_pages, cell_pos=c.cell_pos,
        page_table=c.page_table, row_seq=c.row_seq, row_pos=c.row_pos, row_cell=c.row_cell, seq_past=None,
        parents=None, sinks=None, out=out, workspace=None, scale=scale, softcap=softcap, window=c.window,
    )  # fmt: skip
    return out


def conv(t: Tape, x: Value, weight: Weight, state: State) -> Value:
    """[C, n]: silu of the causal convolution of each channel of x [C, n] with weight [K, C]."""
    s = state
    _check(weight.ne == (s.conv.ne[1] + 1, x.ne[0]) and s.conv.ne[0] == x.ne[0], "conv", x, weight.rows)
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
    _check(q.ne == k.ne and n_v % k.ne[1] == 0 and s.delta.ne[:3] == (v.ne[0], k.ne[0], n_v), "delta", k, v, s.delta)
    _check(alpha.ne[0] * alpha.ne[1] == n_v and a.ne == dt.ne == (n_v,), "delta", alpha, a.rows, dt.rows)
    out = t.claim(f"{a.name.rpartition('.')[0]}.delta", "F32", *v.ne, rows=v.rows)
    t.append(
        "delta", v.rows, ["out"], q=q, k=k, v=v, alpha=alpha, beta=beta, a=a.rows, dt=dt.rows, state=s.delta,
        row_seq=s.row_seq, seq_slot=s.seq_slot, out_slots=s.out_slots, parents=None, update=None, out=out,
        workspace=None, scale=k.ne[0] ** -0.5, order=int(order),
    )  # fmt: skip
    return out


def kv_copy(t: Tape, copies: Value, cache: Cache) -> None:
    """Copies pages of one layer: copies I32 [3, n] of (src, dst, n_cells)."""
    pages = {"k_pages": cache.k_pages, "v_pages": cache.v_pages, "cell_pos": cache.cell_pos}
    t.append("kv_copy", copies.rows, [], copies=copies, **pages)


def rows_of(t: Tape, x: Value, index: Value) -> Value:
    """[D, m]: the columns index [m] of x [D, n]."""
    out = t.claim(f"{x.name}.rows", "F32", x.ne[0], index.ne[0], rows=index.rows)
    t.append("rows", index.rows, ["out"], x=x, index=index, out=out)
    return out


def count(t: Tape, counts: Value, slots: Value, tokens: Value, amount: Value) -> None:
    """Counts tokens [n] for the penalties of slots [n]."""
    t.append("count", slots.rows, [], counts=counts, slots=slots, tokens=tokens, amount=amount)


@dataclass(frozen=True)
class Drawn:
    """What `sample` gives for each of m rows."""

    token: Value  # I32 [m]
    logprob: Value  # F32 [m]
    top_ids: Value  # I32 [n_top, m]
    top_logprobs: Value  # F32 [n_top, m]


def sample(
    t: Tape, logits: Value, sample_rows: Value, counts: Value, bias_ids: Value, bias_values: Value, n_top: int
) -> Drawn:
    """Draws a token from each row of logits [V, m]; sample_rows holds luce_sample_row [m]."""
    m = logits.ne[1]
    drawn = Drawn(
        t.claim("token", "I32", m, rows=logits.rows),
        t.result("logprob", "F32", m, rows=logits.rows),
        t.result("top_ids", "I32", n_top, m, rows=logits.rows),
        t.result("top_logprobs", "F32", n_top, m, rows=logits.rows),
    )
    t.append(
        "sample", logits.rows, ["token", "logprob", "top_ids", "top_logprobs"],
        logits=logits, rows=sample_rows, counts=counts, masks=None, bias_ids=bias_ids, bias_values=bias_values,
        token=drawn.token, logprob=drawn.logprob, top_ids=drawn.top_ids, top_logprobs=drawn.top_logprobs,
        workspace=None,
    )  # fmt: skip
    return drawn


def advance(t: Tape, token: Value, slots: Value, state: Value, stop_ids: Value, forced: Value) -> Value:
    """I32 [m]: the token that each row emits, -1 where it is frozen; state (luce_row_state) moves on."""
    out = t.result("emitted", "I32", token.ne[0], rows=token.rows)
    t.append(
        "advance", token.rows, ["emitted"],
        token=token, slots=slots, state=state, stop_ids=stop_ids, forced=forced, emitted=out,
    )  # fmt: skip
    return out


def _check(fits: bool, op: str, *values: Value | None) -> None:
    if not fits:
        raise ShapeError(f"{op}: shapes do not fit: {', '.join(map(str, values))}")
