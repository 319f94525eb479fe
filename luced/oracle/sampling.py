"""What the ops that choose tokens mean: count, sample, advance, mailbox."""

from __future__ import annotations

from typing import Any

import numpy as np

from luced.oracle.blocks import Array
from luced.oracle.fault import LOGITS, NONE, ROW, TOKEN

_I32, _F32 = "<i4", "<f4"
SAMPLE_ROW = np.dtype(
    [
        ("seed", "<u8"),
        ("position", _I32),
        ("choice", _I32),
        ("slot", _I32),
        ("parent", _I32),
        ("token", _I32),
        ("bias_begin", _I32),
        ("bias_end", _I32),
        ("mask", _I32),
        ("temperature", _F32),
        ("top_k", _I32),
        ("typical_p", _F32),
        ("top_p", _F32),
        ("min_p", _F32),
        ("repetition_penalty", _F32),
        ("frequency_penalty", _F32),
        ("presence_penalty", _F32),
        ("n_top", _I32),
        ("reserved", _I32),
    ]
)
ROW_STATE = np.dtype(
    [
        ("position", _I32),
        ("n_left", _I32),
        ("finish", _I32),
        ("n_stop", _I32),
        ("n_forced", _I32),
        ("forced_head", _I32),
    ]
)
COUNT_PROMPT = 1 << 30


def count(a: Any) -> int:
    n_slots, n_vocab = a.counts.shape
    fault = NONE
    for i in range(a.n_rows):
        slot, token, amount = int(a.slots[i]), int(a.tokens[i]), int(a.amount[i])
        if not 0 <= slot < n_slots:
            fault = fault or ROW
        elif token < 0:
            a.counts[slot] = 0
        elif token >= n_vocab:
            fault = fault or TOKEN
        elif amount == 0:
            a.counts[slot, token] |= COUNT_PROMPT
        else:
            a.counts[slot, token] += amount
    return fault


def philox4x32(key: int, counter: Array) -> Array:
    """Philox4x32-10 (Salmon et al., 2011) of counters [..., 4] under a 64-bit key."""
    k0, k1 = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    c0, c1, c2, c3 = (counter[..., j].astype(np.uint64) for j in range(4))
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack([c0, c1, c2, c3], -1).astype(np.uint32)


def gumbel(seed: int, position: int, choice: int, n_vocab: int) -> Array:
    """The noise of each token id, float64 [n_vocab]."""
    counter = np.zeros(((n_vocab + 3) // 4, 4), np.uint32)
    counter[:, 0] = np.arange(len(counter))
    counter[:, 1], counter[:, 2] = position & 0xFFFFFFFF, choice & 0xFFFFFFFF
    words = philox4x32(seed, counter).reshape(-1)[:n_vocab]
    return -np.log(-np.log((words.astype(np.float64) + 0.5) / 2.0**32))


def sample(a: Any) -> int:
    rows = a.rows.view(SAMPLE_ROW).reshape(-1)
    fault = NONE
    for i in range(a.n_rows):
        row, raw = rows[i], a.logits[i].astype(np.float64)
        adjusted = adjust(a, rows, i)
        broken = not (raw < np.inf).all()
        if broken or not np.isfinite(raw).any() or not np.isfinite(adjusted).any():
            fault = LOGITS
            a.token[i], a.logprob[i] = 0, -np.inf
            if a.top_ids is not None:
                a.top_ids[i], a.top_logprobs[i] = -1, -np.inf
            continue
        if row["temperature"] <= 0:
            token = int(adjusted.argmax())
        else:
            ids = narrow(row, adjusted)
            noise = gumbel(int(row["seed"]), int(row["position"]), int(row["choice"]), len(raw))
            token = int(ids[(adjusted[ids] / float(row["temperature"]) + noise[ids]).argmax()])
        logprob = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
        a.token[i], a.logprob[i] = token, logprob[token]
        if a.top_ids is not None:
            best = np.lexsort((np.arange(len(raw)), -raw))[: min(row["n_top"], np.isfinite(raw).sum())]
            a.top_ids[i], a.top_logprobs[i] = -1, -np.inf
            a.top_ids[i, : len(best)], a.top_logprobs[i, : len(best)] = best, logprob[best]
    return fault


def adjust(a: Any, rows: Array, i: int) -> Array:
    """Row i's logits after mask, bias and penalties, in float32 as the kernels keep them, widened."""
    row, x = rows[i], a.logits[i].astype(np.float32)
    if row["mask"] >= 0:
        bits = np.unpackbits(a.masks[row["mask"]].view(np.uint8), bitorder="little")[: len(x)]
        x[bits == 0] = -np.inf
    for j in range(row["bias_begin"], row["bias_end"]):
        x[a.bias_ids[j]] += a.bias_values[j]
    if row["slot"] >= 0:
        known = a.counts[row["slot"]]
        generated = known & (COUNT_PROMPT - 1)
        in_prompt = known & COUNT_PROMPT != 0
        # What a draft's path holds below its root counts as generated, before anybody has committed it.
        at, path = i, []
        while rows[at]["parent"] >= 0:
            path.append(int(rows[at]["token"]))
            at = int(rows[at]["parent"])
        generated = generated + np.bincount(path, minlength=len(x)).astype(np.int32) if path else generated
        seen = (generated > 0) | in_prompt
        scaled = np.where(x > 0, x / row["repetition_penalty"], x * row["repetition_penalty"])
        x = np.where(seen, scaled, x)
        x = x - row["frequency_penalty"] * generated - row["presence_penalty"] * (generated > 0)
    return np.asarray(x, np.float64)


def narrow(row: Any, logits: Array) -> Array:
    """Ids that top_k, typical_p, top_p and min_p leave, in that order."""
    ids = np.flatnonzero(logits > -np.inf)
    ids = ids[np.lexsort((ids, -logits[ids]))]
    if row["top_k"] > 0:
        ids = ids[: row["top_k"]]
    if row["typical_p"] < 1:
        p = _softmax(logits[ids])
        surprise = -np.log(np.maximum(p, 1e-300))
        order = np.lexsort((ids, np.abs(surprise - (p * surprise).sum())))
        ids = ids[np.sort(order[: _shortest(p[order], row["typical_p"])])]
    if row["top_p"] < 1:
        p = _softmax(logits[ids])
        ids = ids[: _shortest(p, row["top_p"])]
    if row["min_p"] > 0:
        p = _softmax(logits[ids])
        ids = ids[p >= row["min_p"] * p[0]]
    return ids


def _softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max())
    p: Array = e / e.sum()
    return p


def _shortest(p: Array, mass: float) -> int:
    """Length of the shortest prefix of p that holds `mass`; never 0."""
    return min(int(np.searchsorted(np.cumsum(p), mass)) + 1, len(p))


def advance(a: Any) -> int:
    fault = NONE
    states = a.state.view(ROW_STATE).reshape(-1)
    for i in range(a.n_rows):
        slot = int(a.slots[i])
        if slot == -1:
            a.emitted[i] = a.token[i]
            continue
        if not 0 <= slot < len(states):
            fault, a.emitted[i] = ROW, -1
            continue
        state = states[slot]
        if state["finish"]:
            a.emitted[i] = -1
            continue
        token = int(a.token[i])
        if state["forced_head"] < state["n_forced"]:
            token = int(a.forced[slot, state["forced_head"]])
            state["forced_head"] += 1
        a.emitted[i] = token
        state["position"] += 1
        state["n_left"] -= 1
        if token in a.stop_ids[slot, : state["n_stop"]]:
            state["finish"] = 1
        elif state["n_left"] <= 0:
            state["finish"] = 2
    return fault


def mailbox(a: Any) -> int:
    """Nobody else runs while a tape is interpreted: the interpreter itself does the work between two tickets."""
    a.box[0] += 1
    a.box[1] = a.box[0]
    return NONE
