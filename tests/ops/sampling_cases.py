"""Cases of the ops that choose tokens: count, sample, advance."""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.device.abi import LUCE_COUNT_PROMPT, FaultCode
from luced.oracle.sampling import ROW_STATE, SAMPLE_ROW
from tests.ops.dense_cases import EPS, Build, normal, strided, unwritten
from tests.ops.harness import Args, Bound, Case

_PLAIN = {
    "slot": -1,
    "parent": -1,
    "mask": -1,
    "temperature": 1.0,
    "typical_p": 1.0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
}
_PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4}


def _sample(
    m: int,
    n_vocab: int,
    *,
    n_top: int = 0,
    spread: float = 4.0,
    mask: bool = False,
    bias: bool = False,
    counts: bool = False,
    tree: bool = False,
    penalties: bool = False,
    n_rows: int | None = None,
    **fields: Any,
) -> Build:
    """m rows of logits; `fields` are of every luce_sample_row."""

    def build(random: np.random.Generator) -> Args:
        rows = np.zeros(m, SAMPLE_ROW)
        for name, value in (_PLAIN | (_PENALTIES if penalties else {}) | fields).items():
            rows[name] = value
        rows["seed"] = random.integers(0, 2**63, m)
        rows["position"] = random.integers(0, 100000, m)
        rows["choice"] = random.integers(0, 3, m)
        rows["n_top"] = n_top
        args: Args = {
            "logits": strided(normal(random, m, n_vocab, scale=spread)),
            "rows": rows.view(np.dtype((np.void, SAMPLE_ROW.itemsize))),
            "token": np.full(m, -9, np.int32),
            "logprob": unwritten(m),
            "n_rows": n_rows,
        }
        if n_top:
            args["top_ids"] = np.full((m, n_top + 1), -9, np.int32)
            args["top_logprobs"] = unwritten(m, n_top + 1)
        if mask:
            rows["mask"] = random.permutation(m)
            args["masks"] = random.integers(-(2**31), 2**31, (m, (n_vocab + 31) // 32)).astype(np.int32)
        if bias:
            args["bias_ids"] = random.integers(0, n_vocab, 3 * m).astype(np.int32)
            args["bias_values"] = normal(random, 3 * m, scale=10)
            rows["bias_begin"], rows["bias_end"] = np.arange(m) * 3, np.arange(m) * 3 + 3
        if counts:
            rows["slot"] = np.arange(m)[::-1]
            share = min(0.3, 1000 / n_vocab)
            many = np.where(random.random((m, n_vocab)) < share, random.integers(1, 5, (m, n_vocab)), 0)
            prompt = np.where(random.random((m, n_vocab)) < share, LUCE_COUNT_PROMPT, 0)
            args["counts"] = (many | prompt).astype(np.int32)
        if tree:
            rows["parent"] = [-1, *(int(random.integers(0, i)) for i in range(1, m))]
            rows["token"] = np.argsort(-args["logits"], axis=1)[:, 0]
            rows["token"][2:4] = rows["token"][1]
        return args

    return build


def _logits(values: list[float], **fields: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        args = _sample(1, len(values), n_top=len(values), **fields)(random)
        args["logits"][0] = values
        return args

    return build


# Sums of e^x are of blocks of 4096 in at least four parts: their error, and so that of the logprob, is below 1100 eps.
_BOUND = Bound(relative=2 * EPS, absolute=1200 * EPS)
_INF = float("inf")

SAMPLE = [
    Case("sample", "greedy", _sample(5, 1000, temperature=0.0), _BOUND),
    Case("sample", "greedy-odd", _sample(3, 37, temperature=0.0), _BOUND),
    Case("sample", "greedy-ignores-narrowing", _sample(4, 500, temperature=0.0, typical_p=0.1), _BOUND),
    Case("sample", "plain", _sample(64, 1003, n_top=5), _BOUND),
    Case("sample", "hot", _sample(40, 5000, temperature=3.0), _BOUND),
    Case("sample", "cold", _sample(20, 5000, temperature=0.05), _BOUND),
    Case("sample", "flat", _sample(20, 9000, spread=0.001), _BOUND),
    Case("sample", "one-token", _sample(2, 1, n_top=1), _BOUND),
    Case("sample", "some-rows", _sample(9, 300, n_rows=4, n_top=3), _BOUND),
    Case("sample", "top_k", _sample(40, 5000, top_k=40, spread=1), _BOUND),
    Case("sample", "top_k-1", _sample(9, 700, top_k=1), _BOUND),
    Case("sample", "top_k-3000", _sample(9, 5000, top_k=3000, spread=0.5), _BOUND),
    Case("sample", "top_p", _sample(40, 5000, top_p=0.9, spread=2), _BOUND),
    Case("sample", "top_p-nearly-all", _sample(20, 5000, top_p=0.999, spread=0.5), _BOUND),
    Case("sample", "top_p-tiny", _sample(9, 500, top_p=1e-6), _BOUND),
    Case("sample", "min_p", _sample(40, 5000, min_p=0.05, spread=2), _BOUND),
    Case("sample", "typical_p", _sample(40, 5000, typical_p=0.6, spread=2), _BOUND),
    Case("sample", "all-narrow", _sample(40, 5000, top_k=200, typical_p=0.9, top_p=0.9, min_p=0.02, spread=1), _BOUND),
    Case("sample", "mask", _sample(20, 1003, mask=True), _BOUND),
    Case("sample", "mask-greedy", _sample(20, 77, mask=True, temperature=0.0), _BOUND),
    Case("sample", "bias", _sample(20, 300, bias=True), _BOUND),
    Case("sample", "penalties", _sample(20, 300, counts=True, penalties=True), _BOUND),
    Case("sample", "penalties-greedy", _sample(20, 300, counts=True, temperature=0.0, penalties=True), _BOUND),
    Case(
        "sample",
        "all",
        _sample(20, 900, mask=True, bias=True, counts=True, top_p=0.9, penalties=True),
        _BOUND,
    ),
    Case("sample", "draft-tree", _sample(12, 50, counts=True, tree=True, penalties=True), _BOUND, cut=False),
    Case(
        "sample",
        "draft-tree-greedy",
        _sample(12, 50, counts=True, tree=True, temperature=0.0, presence_penalty=30, repetition_penalty=1.0),
        _BOUND,
        cut=False,
    ),
    Case("sample", "ties", _logits([1, 3, 3, 2, 3, -_INF], temperature=0.0), _BOUND),
    Case("sample", "ties-in-top_k", _logits([5, 5, 5, 5, 5, 5], top_k=2), _BOUND),
    Case("sample", "forbidden", _logits([-_INF, -_INF, 1, -_INF]), _BOUND),
    Case("sample", "nothing-finite", _logits([-_INF] * 5), _BOUND, FaultCode.LOGITS, cut=False),
    Case("sample", "nan", _logits([1, float("nan"), 2]), _BOUND, FaultCode.LOGITS, cut=False),
    Case("sample", "inf", _logits([1, _INF, 2]), _BOUND, FaultCode.LOGITS, cut=False),
    Case("sample", "greedy-49152", _sample(1, 49152, temperature=0.0), _BOUND, is_timed=True),
    Case("sample", "greedy-262144", _sample(1, 262144, temperature=0.0), _BOUND, is_timed=True),
    Case("sample", "plain-49152", _sample(1, 49152), _BOUND, is_timed=True),
    Case("sample", "plain-262144", _sample(1, 262144), _BOUND, is_timed=True),
    Case("sample", "flat-262144", _sample(1, 262144, spread=0.1), _BOUND, is_timed=True),
    Case("sample", "gemma3-262144", _sample(1, 262144, top_k=64, top_p=0.95), _BOUND, is_timed=True),
    Case("sample", "top_p-262144", _sample(1, 262144, top_p=0.95, spread=3), _BOUND, is_timed=True),
    Case("sample", "penalties-262144", _sample(1, 262144, counts=True, penalties=True), _BOUND, is_timed=True),
    Case("sample", "8-49152", _sample(8, 49152, n_top=5), _BOUND, is_timed=True),
]


def _count(entries: list[tuple[int, int, int]], **more: Any) -> Build:
    def build(random: np.random.Generator) -> Args:
        slots, tokens, amount = np.array(entries, np.int32).T
        counts = random.integers(0, 3, (4, 100)).astype(np.int32)
        lists = {"slots": slots.copy(), "tokens": tokens.copy(), "amount": amount.copy()}
        return {"counts": counts, **lists, **more}

    return build


COUNT = [
    Case("count", "some", _count([(0, 5, 1), (0, 5, 1), (3, 99, 0), (2, 0, -1), (0, 99, 7)])),
    Case("count", "clear-between", _count([(1, 5, 1), (1, -1, 0), (1, 60, 0), (1, 60, 2)])),
    Case("count", "some-rows", _count([(0, 5, 1), (9, 9, 9)], n_rows=1)),
    Case("count", "bad-token", _count([(0, 100, 1), (1, 3, 1)]), fault=FaultCode.TOKEN),
    Case("count", "bad-slot", _count([(4, 3, 1), (1, 3, 1)]), fault=FaultCode.ROW),
]


def _advance(slots: list[int], **more: Any) -> Build:
    def build(_: np.random.Generator) -> Args:
        state = np.zeros(6, ROW_STATE)
        state["position"] = np.arange(6) * 10
        state["n_left"] = [5, 1, 5, 5, 2, 5]
        state["finish"] = [0, 0, 0, 2, 0, 0]
        state["n_stop"] = [2, 2, 1, 2, 0, 1]
        state["n_forced"] = [0, 0, 0, 0, 2, 3]
        state["forced_head"] = [0, 0, 0, 0, 1, 3]
        return {
            "token": np.array([7, 8, 9, 7, 7, 8, 9][: len(slots)], np.int32),
            "slots": np.array(slots, np.int32),
            "state": state.view(np.dtype((np.void, ROW_STATE.itemsize))),
            "stop_ids": np.tile(np.array([3, 7], np.int32), (6, 1)),
            "forced": np.tile(np.array([11, 12, 13], np.int32), (6, 1)),
            "emitted": np.full(len(slots), -9, np.int32),
            **more,
        }

    return build


ADVANCE = [
    Case("advance", "each", _advance([0, 1, 2, 3, 4, 5, -1])),
    Case("advance", "any-order", _advance([4, -1, 1, 0])),
    Case("advance", "some-rows", _advance([4, 0, 1], n_rows=1)),
    Case("advance", "twice", _advance([4, 2, 4, 4, 4])),
    Case("advance", "bad-slot", _advance([0, 6, -2]), fault=FaultCode.ROW),
]

CASES = [*SAMPLE, *COUNT, *ADVANCE]
