"""What the ops on recurrent state mean: conv, delta, and the states they leave. float64 inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from luced.oracle.blocks import Array
from luced.oracle.fault import NONE, PAGE, ROW


def conv(a: Any) -> int:
    n_taps = a.weight.shape[1]
    for rows in _Rows.of(a):
        for i in rows.indices:
            c = np.einsum("ck,kc->c", a.weight.astype(np.float64), _inputs(a, rows, i, n_taps))
            with np.errstate(over="ignore"):
                a.out[i] = c / (1 + np.exp(-c))
        _store_inputs(a, rows)
    return _fault(a)


def conv_commit(a: Any) -> int:
    for rows in _Rows.of(a):
        _store_inputs(a, rows)
    return _fault(a)


def _inputs(a: Any, rows: _Rows, i: int, n: int) -> Array:
    """The last n inputs at row i, the oldest first."""
    before = np.zeros(a.state.shape[1:]) if rows.slot < 0 else a.state[rows.slot]
    path = rows.path(i)
    return np.concatenate([before, a.x[path]])[-n:]


def _store_inputs(a: Any, rows: _Rows) -> None:
    states = [(slot, _inputs(a, rows, i, a.state.shape[1])) for i, slot in rows.stores()]
    for slot, state in states:
        a.state[slot] = state


def delta(a: Any) -> int:
    key_head, n_v = _key_heads(a, a.v.shape[1]), a.v.shape[1]
    for rows in _Rows.of(a):
        after: dict[int, Array] = {-1: _state(a, rows)}
        for i in rows.indices:
            s = after[rows.parents[i]] * np.exp(_log_decay(a, i))[:, None, None]
            k, q = a.k[i, key_head].astype(np.float64), a.q[i, key_head].astype(np.float64)
            beta = 1 / (1 + np.exp(-a.beta[i].reshape(n_v).astype(np.float64)))
            u = beta[:, None] * (a.v[i] - np.einsum("hdv,hd->hv", s, k))
            after[i] = s + k[:, :, None] * u[:, None, :]
            a.out[i] = a.scale * np.einsum("hdv,hd->hv", after[i], q)
            if a.update is not None:
                a.update[i] = u
        for i, slot in rows.stores():
            a.state[slot] = after[i]
    return _fault(a)


def delta_commit(a: Any) -> int:
    key_head = _key_heads(a, a.update.shape[1])
    for rows in _Rows.of(a):
        states = []
        for last, slot in rows.stores():
            s = _state(a, rows)
            for i in rows.path(last):
                s = s * np.exp(_log_decay(a, i))[:, None, None] + a.k[i, key_head][:, :, None] * a.update[i][:, None, :]
            states.append((slot, s))
        for slot, s in states:
            a.state[slot] = s
    return _fault(a)


def _key_heads(a: Any, n_v: int) -> Array:
    n_k = a.k.shape[1]
    heads: Array = np.arange(n_v) // (n_v // n_k) if a.order else np.arange(n_v) % n_k
    return heads


def _log_decay(a: Any, i: int) -> Array:
    x = a.alpha[i].reshape(-1).astype(np.float64) + a.dt
    return np.asarray(a.a * np.logaddexp(0, x))


def _state(a: Any, rows: _Rows) -> Array:
    """[n_v, d, dv]"""
    return np.asarray(np.zeros(a.state.shape[1:]) if rows.slot < 0 else a.state[rows.slot], np.float64)


class _Rows:
    """The rows of one sequence. What is out of range counts as -1."""

    def __init__(self, a: Any, begin: int, end: int) -> None:
        self.indices = range(begin, end)
        self.slot = -1
        if 0 <= a.row_seq[begin] < len(a.seq_slot) and _is_slot(a, a.seq_slot[a.row_seq[begin]]):
            self.slot = int(a.seq_slot[a.row_seq[begin]])
        self.parents = {
            i: (i - 1 if i > begin else -1) if a.parents is None else int(a.parents[i]) for i in self.indices
        }
        self.bad = [i for i, p in self.parents.items() if p != -1 and not begin <= p < i]
        for i in self.bad:
            self.parents[i] = -1
        self._out_slots = {i: int(a.out_slots[i]) for i in self.indices if _is_slot(a, a.out_slots[i])}

    @staticmethod
    def of(a: Any) -> Iterator[_Rows]:
        begin = 0
        while begin < a.n_rows:
            end = begin + 1
            while end < a.n_rows and a.row_seq[end] == a.row_seq[begin]:
                end += 1
            yield _Rows(a, begin, end)
            begin = end

    def path(self, i: int) -> list[int]:
        path = []
        while i >= 0:
            path.append(i)
            i = self.parents[i]
        return path[::-1]

    def stores(self) -> list[tuple[int, int]]:
        return [(i, slot) for i, slot in self._out_slots.items() if slot >= 0]


def _is_slot(a: Any, slot: int) -> bool:
    return bool(-1 <= slot < len(a.state))


def _fault(a: Any) -> int:
    fault = NONE
    for rows in _Rows.of(a):
        sequence = int(a.row_seq[rows.indices[0]])
        if not 0 <= sequence < len(a.seq_slot) or rows.bad:
            fault = fault or ROW
        elif not _is_slot(a, a.seq_slot[sequence]) or not all(_is_slot(a, a.out_slots[i]) for i in rows.indices):
            fault = fault or PAGE
    return fault
