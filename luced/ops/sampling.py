"""The ops that choose tokens: count, sample, advance."""

from __future__ import annotations

from dataclasses import dataclass

from luced.device.values import Value
from luced.tape import Tape


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


def advance(t: Tape, token: Value, slots: Value, state: Value, stop_ids: Value, forced: Value, emitted: Value) -> None:
    """Into emitted, I32 [m]: each row's token, -1 where it is frozen; state (luce_row_state) moves on."""
    t.append(
        "advance", token.rows, ["emitted"],
        token=token, slots=slots, state=state, stop_ids=stop_ids, forced=forced, emitted=emitted,
    )  # fmt: skip
