"""The ops of a mixture of experts: route, expert_matmul, combine."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from luced.device.abi import Gating
from luced.device.values import Value, make_value
from luced.ops.weight import Weight, check, for_weight
from luced.tape import Tape

__all__ = ["Chosen", "Gating", "Routing", "combine", "expert_matmul", "route"]


@dataclass(frozen=True)
class Routing:
    """How rows choose their experts: what luce_route takes. `floor` 0: the weights are not divided by their sum."""

    n_used: int
    gating: int = Gating.SOFTMAX
    n_groups: int = 1
    n_groups_used: int = 1
    floor: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class Chosen:
    """The k experts of each row, of n_expert, and what each counts."""

    n_expert: int
    ids: Value  # I32 [k, n]
    weights: Value  # F32 [k, n]


def route(
    t: Tape,
    logits: Value,
    routing: Routing,
    bias: Weight | None = None,
    table: Weight | None = None,
    tokens: Value | None = None,
) -> Chosen:
    """Chooses experts by logits [N, n], plus bias [N]; with table [k, V], by the token ids [n]."""
    r, (n_expert, n) = routing, logits.ne
    b, hashed = bias.rows if bias else None, table.rows if table else None
    check(r.n_used <= n_expert and (b is None or b.ne == (n_expert,)), "route", logits, b)
    check(hashed is None or (tokens is not None and hashed.ne[0] == r.n_used), "route", tokens, hashed)
    stem = logits.name.removesuffix("_inp")
    chosen = Chosen(
        n_expert,
        t.claim(f"{stem}.ids", "I32", r.n_used, n, rows=logits.rows),
        t.claim(f"{stem}.weights", "F32", r.n_used, n, rows=logits.rows),
    )
    t.append(
        "route", logits.rows, ["ids", "weights"], logits=logits, bias=b, table=hashed, tokens=tokens if table else None,
        ids=chosen.ids, weights=chosen.weights,
        gating=int(r.gating), n_groups=r.n_groups, n_groups_used=r.n_groups_used, floor=r.floor, scale=r.scale,
    )  # fmt: skip
    return chosen


def expert_matmul(t: Tape, weight: Weight, x: Value, chosen: Chosen, scale: Weight | None = None) -> Value:
    """[N * k, n]: the chosen k experts of weight [K, N, n_expert], times scale [n_expert], times x.

    x is [K, n], the same for all experts of a row, or [K * k, n].
    """
    factors = scale.rows if scale else None
    check(weight.ne[2:] == (chosen.n_expert,), "expert_matmul", weight.rows, x)
    check(factors is None or factors.ne == (chosen.n_expert,), "expert_matmul", weight.rows, factors)
    return _expert_matmul(t, weight, x, chosen.ids, factors)


def grouped_matmul(t: Tape, weight: Weight, x: Value, n: int) -> Value:
    """[N, n_rows]: each of n groups of x [K * n, n_rows] through rows of its own of weight [K, N], as experts that
    every row chooses."""
    r = weight.rows
    check(r.ne[1] % n == 0 and x.ne[0] == n * r.ne[0], "grouped_matmul", r, x)
    stack = replace(r, ne=(r.ne[0], r.ne[1] // n, n), nb=(*r.nb[:2], r.nb[1] * (r.ne[1] // n)))
    every = make_value("groups", "constant", "I32", n, data=array("i", range(n)).tobytes())
    ids = replace(every, ne=(n, x.ne[1]), nb=(4, 0))  # the same for each row
    return _expert_matmul(t, Weight(stack, stack), x, ids, None)


def _expert_matmul(t: Tape, weight: Weight, x: Value, ids: Value, factors: Value | None) -> Value:
    k = ids.ne[0]
    check(x.ne[0] in (weight.ne[0], weight.ne[0] * k), "expert_matmul", weight.rows, x)
    out = t.claim(weight.name, "F32", weight.ne[1] * k, x.ne[1], rows=x.rows)
    x = for_weight(t, weight, x)
    t.append(
        "expert_matmul", out.rows, ["out"],
        weight=weight.rows, x=x, ids=ids, scale=factors, out=out, workspace=None,
    )  # fmt: skip
    return out


def combine(t: Tape, x: Value, weights: Value, add: Value | None = None) -> Value:
    """[D, n]: the sum of the k parts of each row, x [D * k, n], times weights [k, n]; plus add [D, n]."""
    k = weights.ne[0]
    out = t.claim(f"{x.name}.sum", "F32", x.ne[0] // k, x.ne[1], rows=x.rows)
    check(x.ne[0] % k == 0 and (add is None or add.ne == out.ne), "combine", x, weights, add)
    t.append("combine", x.rows, ["out"], x=x, weights=weights, add=add, out=out)
    return out
