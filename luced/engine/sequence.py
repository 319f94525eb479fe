"""A sequence: one choice of one request, from its prompt to its last token."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from luced.errors import RequestError
from luced.link import Generate, Sampling

if TYPE_CHECKING:
    from luced.engine.fair import Client
    from luced.engine.prefix import Node

CLASSES = ("interactive", "agent", "batch")  # best first
Table = array  # of C ints: the runner copies it whole at every step


class Request:
    """A Generate and its choices. All but the `first` wait until that one has put the prompt into the cache."""

    __slots__ = ("first", "generate", "id", "keep_until_s", "n_open", "paused", "sequences", "waits")

    def __init__(self, generate: Generate, order: int, now: float) -> None:
        self.generate = generate
        self.id = generate.id
        said = generate.said or [[]] * generate.n
        self.sequences = [Sequence(self, choice, said[choice], order, now) for choice in range(generate.n)]
        self.first, *self.waits = self.open
        self.n_open = 1 + len(self.waits)  # choices that have not ended
        self.paused = False
        self.keep_until_s = 0.0  # while it is paused: then its pages go

    @property
    def open(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if not sequence.ended]

    @property
    def has_started(self) -> bool:
        return self.first.n_cached >= 0

    def state(self, now: float) -> dict[str, Any]:
        first = self.first
        has_spoken = any(sequence.has_spoken for sequence in self.sequences)
        return {
            "id": self.id,
            "client": self.generate.client,
            "phase": "paused" if self.paused else "decode" if has_spoken else "prefill" if first.slot >= 0 else "queue",
            "n_prompt": first.n_prompt,
            "n_done": min(first.n_done, first.n_prompt),
            "n_tokens": sum(sequence.n_generated for sequence in self.sequences),
            "age_s": now - first.arrived_s,
        }


class Sequence:
    """Tokens, and where their cells are.

    The cells of tokens[:n_done] are in the cache: cell c of group g is in page tables[g][c // page_size], and its
    logical position is c. A table entry of -1 is a hole: its page died with the window.
    """

    __slots__ = (
        "arrived_s",
        "checkpoints",
        "choice",
        "client",
        "copies",
        "ended",
        "first_token_s",
        "held",
        "is_fresh",
        "max_tokens",
        "n_cached",
        "n_done",
        "n_known",
        "n_prompt",
        "n_state",
        "n_under_way",
        "order",
        "path",
        "pooling",
        "priority",
        "queued",
        "request",
        "sampling",
        "share",
        "slot",
        "source",
        "started_s",
        "state",
        "stop_ids",
        "stored",
        "tables",
        "tenant",
        "tokens",
    )

    def __init__(self, request: Request, choice: int, said: list[int] | None, order: int, now: float) -> None:
        """`said`: what it had generated before it came here; None: it had ended."""
        generate = request.generate
        self.request = request
        self.choice = choice
        self.order = order  # of arrival
        self.tokens: list[int] = [*generate.prompt, *(said or ())]  # the prompt, then what was generated
        self.n_prompt = len(generate.prompt)
        self.n_known = len(self.tokens)  # when it came
        self.n_done = 0
        self.tables: list[Table[int]] = []  # one for each cache group, while it runs
        self.path: list[Node] = []  # the prefix tree's nodes of its full pages
        self.copies: list[tuple[int, int, int, int]] = []  # group, src, dst, n_cells: to be done before its next chunk
        self.state = -1  # its slot of recurrent state, while it runs
        self.source = -1  # the slot that its next row goes on from: its own or a checkpoint's; -1: from zeros
        self.n_state = -1  # tokens whose state that is
        self.checkpoints: list[int] = []  # token counts after which the state is kept
        self.stored: list[tuple[int, int]] = []  # (token count, slot) of those that the planned step stores
        self.slot = -1  # row of the device's row states and counts, while it runs
        self.sampling: Sampling = generate.sampling
        self.stop_ids: list[int] = generate.stop_ids
        self.max_tokens = generate.max_tokens
        self.priority = CLASSES.index(generate.priority)
        self.pooling = generate.pooling
        self.tenant = generate.tenant
        self.client = generate.client
        self.share: Client  # of its class's rows, from when it came
        self.ended = said is None
        self.queued = False  # waits to start, or for the rest of its known tokens
        self.held = False  # would be queued, were its request not paused
        self.is_fresh = False  # has a slot that no step has seen yet
        self.n_under_way = 0  # steps that have rows of it and are not committed
        self.n_cached = -1  # prompt tokens that came from the cache when it first started; -1: not started
        self.arrived_s = now
        self.started_s = now
        self.first_token_s = now

    @property
    def is_cacheable(self) -> bool:
        """Whether it may begin from the prefix cache and go into it: not if the hidden states of all rows, or of the
        first, are wanted, which the cache does not have."""
        return self.pooling in ("", "last")

    @property
    def is_penalised(self) -> bool:
        """Whether what it has generated changes what it draws: then the host counts each token before the next step."""
        p = self.sampling
        return p.repetition_penalty != 1 or p.frequency_penalty != 0 or p.presence_penalty != 0

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def has_spoken(self) -> bool:
        """Whether it has said more than it had when it came."""
        return len(self.tokens) > self.n_known

    @property
    def n_left(self) -> int:
        """Tokens it may still emit."""
        return self.max_tokens - self.n_generated

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """The best (least) of all running sequences can always go on: the worst give their pages up for it."""
        return (self.request.paused, self.priority, self.order, self.choice)

    def chunk_rows(self, n_left: int, chunk: int, may_wait: bool) -> int:
        """Rows to its end, or else to the last multiple of `chunk`; where that is too far, it waits for a step of its
        own."""
        n_rows = len(self.tokens) - self.n_done
        if n_rows <= n_left:
            return n_rows
        n_over = (self.n_done + n_left) % chunk
        if n_over < n_left:
            return n_left - n_over
        return 0 if may_wait else n_left

    def usage(self) -> dict[str, int]:
        return {
            "n_prompt": self.n_prompt,
            "n_cached": max(0, min(self.n_cached, self.n_prompt)),  # it may have ended before it started again
            "n_generated": self.n_generated,
            "n_drafted": 0,
            "n_accepted": 0,
        }

    def timings(self, now: float) -> dict[str, float]:
        return {
            "queue_s": self.started_s - self.arrived_s,
            "prefill_s": self.first_token_s - self.started_s,
            "decode_s": now - self.first_token_s,
        }


def check(generate: Generate, n_vocab: int, n_ctx: int) -> None:
    """RequestError: it can never run."""
    n_prompt, n_tokens = len(generate.prompt), len(generate.prompt) + generate.max_tokens
    assert not generate.said or len(generate.said) == generate.n, "it has said something for each choice, or for none"
    if not n_prompt:
        raise RequestError("bad_parameter", "the prompt is empty: there is nothing to continue", parameter="prompt")
    for token in (min(generate.prompt), max(generate.prompt)):
        if not 0 <= token < n_vocab:
            what = f"token {token} is not in the vocabulary of {n_vocab}"
            raise RequestError("bad_parameter", what, parameter="prompt")
    if n_tokens > n_ctx:
        raise RequestError(
            "context_too_long",
            f"{n_prompt} prompt tokens and {generate.max_tokens} to generate do not fit a context of {n_ctx}",
            n_prompt=n_prompt,
            max_tokens=generate.max_tokens,
            n_ctx=n_ctx,
        )
