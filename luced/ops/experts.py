"""The ops of a mixture of experts: route, expert_matmul, combine."""

from __future__ import annotations

from dataclasses import dataclass

from luced.device.abi import Gating
from luced.device.values import Value
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
    k, factors = chosen.ids.ne[0], scale.rows if scale else None
    check(
        weight.ne[2:] == (chosen.n_expert,) and x.ne[0] in (weight.ne[0], weight.ne[0] * k),
        "expert_matmul",
        weight.rows,
        x,
    )
    check(factors is None or factors.ne == (chosen.n_expert,), "expert_matmul", weight.rows, factors)
    out = t.claim(weight.name, "F32", weight.ne[1] * k, x.ne[1], rows=x.rows)
    x = for_weight(t, weight, x)
    t.append(
        "expert_matmul", out.rows, ["out"],
        weight=weight.rows, x=x, ids=chosen.ids, scale=factors, out=out, workspace=None,
    )  # fmt: skip
    return out


def combine(t: Tape, x: Value, chosen: Chosen, add: Value | None = None) -> Value:
    """[D, n]: the sum of the k outputs of each row, x [D * k, n], times their weights; plus add [D, n]."""
    weights, k = chosen.weights, chosen.weights.ne[0]
    out = t.claim(f"{x.name}.sum", "F32", x.ne[0] // k, x.ne[1], rows=x.rows)
    check(x.ne[0] % k == 0 and (add is None or add.ne == out.ne), "combine", x, weights, add)
    t.append("combine", x.rows, ["out"], x=x, weights=weights, add=add, out=out)
    return out
