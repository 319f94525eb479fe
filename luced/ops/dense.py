"""The ops on rows: embed, matmul, norms, pointwise, rope, rows."""

from __future__ import annotations

from dataclasses import replace

from luced.device.abi import Activation, GateFunction, RopeMode
from luced.device.values import Value
from luced.ops.weight import Weight, check, for_weight
from luced.tape import Tape

SILU, GELU_TANH = Activation.SILU, Activation.GELU_TANH
SIGMOID, SOFTPLUS = GateFunction.SIGMOID, GateFunction.SOFTPLUS
ROPE_NORM, ROPE_NEOX = RopeMode.NORM, RopeMode.NEOX


def embed(t: Tape, weight: Weight, ids: Value, scale: float = 1.0) -> Value:
    """[E, n]: the rows of the embedding table for ids [n], times scale."""
    out = t.claim("embed", "F32", weight.ne[0], ids.ne[0], rows=ids.rows)
    t.append("embed", ids.rows, ["out"], weight=weight.rows, ids=ids, out=out, scale=scale)
    return out


def embed_streams(t: Tape, weight: Weight, ids: Value, n: int) -> Value:
    """[E, n, n_rows]: the rows of the embedding table for ids [n_rows], n times."""
    out = t.claim("embed", "F32", weight.ne[0], n, ids.ne[0], rows=ids.rows)
    for i in range(n):
        t.append("embed", ids.rows, ["out"], weight=weight.rows, ids=ids, out=out.head(i), scale=1.0)
    return out


def matmul(t: Tape, weight: Weight, x: Value, bias: Weight | None = None, add: Value | None = None) -> Value:
    """[N, n]: weight [K, N] times x [K, n], plus bias [N], plus add [N, n]."""
    check(weight.ne[0] == x.ne[0] and len(x.ne) == 2, "matmul", weight.rows, x)
    out = t.claim(weight.name, "F32", weight.ne[1], x.ne[1], rows=x.rows)
    check(add is None or add.ne == out.ne, "matmul", weight.rows, add)
    x = for_weight(t, weight, x)
    b = bias.rows if bias else None
    t.append("matmul", x.rows, ["out"], weight=weight.packed, x=x, bias=b, add=add, out=out, workspace=None)
    return out


def rms_norm(t: Tape, x: Value, weight: Weight | None, eps: float, name: str = "") -> Value:
    """Same shape as x [D, n] or [D, H, n]: each D values over their root mean square, times weight [D]."""
    w = weight.rows if weight else None
    check(w is None or w.ne == (x.ne[0],), "rms_norm", w, x)
    out = t.claim(name or (weight.name if weight else f"{x.name}.norm"), "F32", *x.ne, rows=x.rows)
    a, b = (v if len(v.ne) == 3 else v.split(v.ne[0]) for v in (x, out))
    t.append("rms_norm", x.rows, ["out"], x=a, weight=w, out=b, eps=eps)
    return out


def l2_norm(t: Tape, x: Value, eps: float) -> Value:
    """[D, H, n]: each D values over the root of their sum of squares."""
    out = t.claim(f"{x.name}.l2_norm", "F32", *x.ne, rows=x.rows)
    t.append("l2_norm", x.rows, ["out"], x=x, out=out, eps=eps)
    return out


def gated_norm(t: Tape, x: Value, gate: Value, weight: Weight, eps: float) -> Value:
    """[D, H, n]: rms_norm of x times silu(gate)."""
    check(x.ne == gate.ne and weight.ne == (x.ne[0],), "gated_norm", x, gate, weight.rows)
    out = t.claim(weight.name, "F32", *x.ne, rows=x.rows)
    t.append("gated_norm", x.rows, ["out"], x=x, gate=gate, weight=weight.rows, out=out, eps=eps)
    return out


def add(t: Tape, a: Value, b: Value) -> Value:
    """[D, n]."""
    check(a.ne == b.ne, "add", a, b)
    out = t.claim(f"{b.name}.add", "F32", *a.ne, rows=a.rows)
    t.append("add", a.rows, ["out"], a=a, b=b, out=out)
    return out


def scale(t: Tape, x: Value, factor: float) -> Value:
    """[D, n]: factor * x."""
    out = t.claim(f"{x.name}.scale", "F32", *x.ne, rows=x.rows)
    t.append("scale", x.rows, ["out"], x=x, out=out, factor=factor)
    return out


def glu(t: Tape, gate: Value, up: Value, activation: int, limit: float = 0.0) -> Value:
    """[F, n]: activation(gate) * up; with a limit, of min(gate, limit) and of up within it."""
    check(gate.ne == up.ne, "glu", gate, up)
    out = t.claim(f"{gate.name}.glu", "F32", *gate.ne, rows=gate.rows)
    t.append("glu", gate.rows, ["out"], gate=gate, up=up, out=out, activation=int(activation), limit=limit)
    return out


def gate(t: Tape, x: Value, gate: Value, function: int = SIGMOID) -> Value:
    """Same shape as x [D, n] or [D, H, n]: x * function(gate), one gate for each value or for each D values."""
    out = t.claim(f"{x.name}.gate", "F32", *x.ne, rows=x.rows)
    a, g, b = (v if len(v.ne) == 3 else v.split(v.ne[0]) for v in (x, gate, out))
    check(g.ne[1:] == a.ne[1:] and g.ne[0] in (1, a.ne[0]), "gate", x, gate)
    t.append("gate", x.rows, ["out"], x=a, gate=g, out=b, function=int(function))
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
    check(len(x.ne) == 3 and angles.ne[0] <= x.ne[0], "rope", x, angles)
    out = t.claim(f"{x.name}.rope", "F32", *x.ne, rows=x.rows)
    t.append("rope", x.rows, ["out"], x=x, angles=angles, out=out, mode=int(mode))
    return out


def rope_tail(t: Tape, x: Value, angles: Value, mode: int) -> Value:
    """x [D, H, n] itself, of whose heads the last n_rot values are rotated from now on."""
    check(len(x.ne) == 3 and angles.ne[0] <= x.ne[0], "rope", x, angles)
    tail = replace(x.part(x.ne[0] - angles.ne[0], angles.ne[0]), name=f"{x.name}.rope")
    t.append("rope", x.rows, ["out"], x=tail, angles=angles, out=tail, mode=int(mode))
    return replace(x, name=tail.name)


def rows_of(t: Tape, x: Value, index: Value) -> Value:
    """[D, m]: the columns index [m] of x [D, n]."""
    out = t.claim(f"{x.name}.rows", "F32", x.ne[0], index.ne[0], rows=index.rows)
    t.append("rows", index.rows, ["out"], x=x, index=index, out=out)
    return out
