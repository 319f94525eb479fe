"""The ops of hyper-connections: hyper_weights, hyper_mix; what a sublayer reads is a combine."""

from __future__ import annotations

from luced.device.values import Value
from luced.ops.weight import Weight, check
from luced.tape import Tape


def hyper_weights(t: Tape, logits: Value, base: Weight, scale: Weight, eps: float, n_rounds: int) -> Value:
    """As logits, [N + N + N * N, n] or [N, n]: what N streams are read, written and mixed with."""
    check(base.ne == logits.ne[:1] and scale.ne in ((1,), (3,)), "hyper_weights", logits, base.rows, scale.rows)
    out = t.claim(f"{logits.name}.weights", "F32", *logits.ne, rows=logits.rows)
    t.append(
        "hyper_weights", logits.rows, ["out"],
        logits=logits, base=base.rows, scale=scale.rows, out=out, eps=eps, n_rounds=n_rounds,
    )  # fmt: skip
    return out


def hyper_mix(t: Tape, x: Value, y: Value, weights: Value) -> Value:
    """[E, N, n]: the streams x mixed, and y [E, n] on each of them."""
    n = x.ne[1]
    check(y.ne == (x.ne[0], x.ne[2]) and weights.ne[0] == n * (n + 2), "hyper_mix", x, y, weights)
    out = t.claim(f"{y.name}.streams", "F32", *x.ne, rows=x.rows)
    t.append("hyper_mix", x.rows, ["out"], x=x, y=y, weights=weights, out=out)
    return out
