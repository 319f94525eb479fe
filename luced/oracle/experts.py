"""What the ops of a mixture of experts mean: route, expert_matmul, combine. float64 inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.device.abi import Gating
from luced.oracle.blocks import Array, values
from luced.oracle.fault import NONE, ROW, TOKEN


def route(a: Any) -> int:
    n_expert, k = a.logits.shape[1], a.ids.shape[1]
    p = _gate(a.gating, a.logits[: a.n_rows].astype(np.float64))
    fault = NONE
    for i in range(a.n_rows):
        if a.table is not None:
            token = int(a.tokens[i])
            if not 0 <= token < len(a.table):
                fault, ids = fault or TOKEN, None
            else:
                ids = a.table[token]
                if not ((ids >= 0) & (ids < n_expert)).all():
                    fault, ids = fault or ROW, None
        else:
            scores = _allowed(a, np.nan_to_num(p[i] + (0 if a.bias is None else a.bias), nan=-np.inf))
            ids = np.lexsort((np.arange(n_expert), -scores))[:k]
        if ids is None:
            a.ids[i], a.weights[i] = 0, 0
            continue
        weights = p[i, ids]
        if a.gating == Gating.SOFTMAX_CHOSEN:
            weights = _softmax(weights)
        if a.floor > 0:
            weights = weights / max(weights.sum(), a.floor)
        a.ids[i], a.weights[i] = ids, a.scale * weights
    return fault


def _gate(gating: int, logits: Array) -> Array:
    match gating:
        case Gating.SOFTMAX:
            return _softmax(logits)
        case Gating.SIGMOID:
            return 1 / (1 + np.exp(-logits))
        case Gating.SQRT_SOFTPLUS:
            return np.sqrt(np.logaddexp(0, logits))
        case _:
            return logits


def _softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max(-1, keepdims=True))
    p: Array = e / e.sum(-1, keepdims=True)
    return p


def _allowed(a: Any, scores: Array) -> Array:
    """The scores of the best groups; -inf for all others."""
    if a.n_groups <= 1:
        return scores
    groups = scores.reshape(a.n_groups, -1)
    worth = np.sort(groups, -1)[:, -2:].sum(-1)
    best = np.lexsort((np.arange(a.n_groups), -worth))[: a.n_groups_used]
    masked = np.full_like(groups, -np.inf)
    masked[best] = groups[best]
    return masked.reshape(-1)


def expert_matmul(a: Any) -> int:
    n_expert, n_out, k = a.weight.shape[0], a.weight.shape[1], a.ids.shape[1]
    x = values(a.x[: a.n_rows]).astype(np.float64)
    weight: dict[int, Array] = {}
    fault = NONE
    for i in range(a.n_rows):
        inputs = x[i].reshape(-1, x.shape[1] // k) if _is_apart(a) else np.broadcast_to(x[i], (k, x.shape[1]))
        for e in range(k):
            expert, out = int(a.ids[i, e]), a.out[i, e * n_out : (e + 1) * n_out]
            if not 0 <= expert < n_expert:
                fault, out[:] = ROW, 0
                continue
            if expert not in weight:
                weight[expert] = values(a.weight[expert]).astype(np.float64)
            out[:] = (1 if a.scale is None else a.scale[expert]) * (weight[expert] @ inputs[e])
    return fault


def _is_apart(a: Any) -> bool:
    """Each expert of a row has an input of its own."""
    return bool(values(a.x[:1]).shape[-1] != values(a.weight[0, :1]).shape[-1])


def combine(a: Any) -> int:
    n, k = a.n_rows, a.weights.shape[1]
    x = a.x[:n].reshape(n, k, -1).astype(np.float64)
    y = np.einsum("nk,nkd->nd", a.weights[:n].astype(np.float64), x)
    a.out[:n] = y if a.add is None else y + a.add[:n]
    return NONE
