"""What front and engine say to each other: one dataclass per message, msgpack frames on a socketpair.

The front sends Load, Unload, Generate, Abandon, Truncate, Pause, Resume, AskState and Stop; the engine sends
the rest. A Generate carries all that another engine needs to go on with it. Framing is `luce.wire`'s (a message is the
notification [2, name, [fields]]).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# What a Generate may hold; the front refuses more.
MAX_STOP_IDS = 64
MAX_BIAS = 1024  # entries of logit_bias
MAX_LOGPROBS = 32


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: see luce_sample in kernels/include/luce.h. The front has checked the ranges."""

    temperature: float = 0.8
    top_k: int = 40  # 0: all
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    n_logprobs: int = -1  # -1: none; 0: of the token alone; k: and of the k best


# ---- front to engine ----


@dataclass(frozen=True)
class Load:
    """Make the file at `path` resident under the name `model`. n_ctx 0: what the model was trained for."""

    model: str
    path: str
    n_ctx: int = 0
    kv_type: str = "f16"


@dataclass(frozen=True)
class Unload:
    model: str


@dataclass(frozen=True)
class Generate:
    """Generate n choices after `prompt`. `id` is unique for the life of the daemon."""

    id: int
    model: str
    prompt: list[int]
    sampling: Sampling
    stop_ids: list[int]
    max_tokens: int
    n: int = 1
    boundaries: list[int] = field(default_factory=list)  # token counts where a message ends
    priority: str = "interactive"  # interactive > agent > batch
    tenant: str = ""
    client: int = 0  # fairness is among tenants, and among a tenant's clients
    pooling: str = ""  # mean | last | cls: nothing is generated, the prompt's hidden states make one vector
    # Of a request that another engine died of: the tokens that each choice has said; None: it has ended.
    said: list[list[int] | None] = field(default_factory=list)


@dataclass(frozen=True)
class Abandon:
    """Forget this request: its pages are freed at the next commit. Nothing more is said of it."""

    id: int


@dataclass(frozen=True)
class Truncate:
    """Choice `choice` ends after n_tokens generated tokens: a stop string was found in its text."""

    id: int
    choice: int
    n_tokens: int


@dataclass(frozen=True)
class Pause:
    """No more steps for this request: nobody reads what it says. Its pages are for others at once where they are
    needed, and after keep_s in any case."""

    id: int
    keep_s: float


@dataclass(frozen=True)
class Resume:
    """It goes on where it stood."""

    id: int


@dataclass(frozen=True)
class AskState:
    id: int


@dataclass(frozen=True)
class Stop:
    """Finish nothing, free everything, exit 0."""


# ---- engine to front ----


@dataclass(frozen=True)
class Ready:
    pid: int
    device: str  # "cpu", "cuda:0"
    device_name: str
    isa: str
    n_threads: int
    passed_over: list[str] = field(default_factory=list)  # devices that `auto` would rather have had, and why not


@dataclass(frozen=True)
class Loading:
    model: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Loaded:
    """`memory` is the ledger: bytes by owner (weights, kv, activations, ...)."""

    model: str
    architecture: str
    n_ctx: int
    n_vocab: int
    memory: dict[str, int]
    load_s: float
    capabilities: list[str] = field(default_factory=list)  # of luced.models.Architecture
    pooling: str = "mean"  # where the caller does not say


@dataclass(frozen=True)
class Unloaded:
    model: str


@dataclass(frozen=True)
class Refused:
    """A Load failed. `error` is LuceError.to_wire()."""

    model: str
    error: dict[str, Any]


@dataclass(frozen=True)
class Queued:
    """The model's requests that have not started, in the order in which they would as things stand."""

    model: str
    ids: list[int]


@dataclass(frozen=True)
class Progress:
    """Prefill of request `id`: n_done of n_total tokens, n_cached of them from the cache. They are the prompt's, and
    those that it has said where it is resumed."""

    id: int
    n_done: int
    n_total: int
    n_cached: int


@dataclass(frozen=True)
class Tokens:
    """New tokens of one choice. With logprobs, one entry a token: [logprob, [[id, logprob], ...]]."""

    id: int
    choice: int
    tokens: list[int]
    logprobs: list[Any] | None = None


@dataclass(frozen=True)
class Embedded:
    """The vector of a Generate with `pooling`, not normalised. Its Finished follows."""

    id: int
    vector: list[float]


@dataclass(frozen=True)
class Finished:
    """One choice is done. reason: stop | length | truncated. The last choice's Finished ends the request.

    usage: n_prompt, n_cached, n_generated, n_drafted, n_accepted. timings: queue_s, prefill_s, decode_s.
    """

    id: int
    choice: int
    reason: str
    usage: dict[str, int]
    timings: dict[str, float]


@dataclass(frozen=True)
class Failed:
    """Request `id` ends with an error (LuceError.to_wire())."""

    id: int
    error: dict[str, Any]


@dataclass(frozen=True)
class State:
    """Answer to AskState: models (with memory ledgers), requests (id, phase, n_tokens), steps, cache counters."""

    id: int
    state: dict[str, Any]


Message = (
    Load | Unload | Generate | Abandon | Truncate | Pause | Resume | AskState | Stop
    | Ready | Loading | Loaded | Unloaded | Refused | Queued | Progress | Tokens | Embedded | Finished | Failed
    | State
)  # fmt: skip
BY_NAME: dict[str, type[Any]] = {c.__name__: c for c in Message.__args__}


def to_wire(message: Message) -> tuple[str, dict[str, Any]]:
    """(name, fields) of the notification that carries it. The lists in it are not copied."""
    fields = dict(vars(message))
    if isinstance(message, Generate):
        fields["sampling"] = vars(message.sampling)
    return type(message).__name__, fields


def from_wire(name: str, params: dict[str, Any]) -> Message:
    """The message of a notification. KeyError or TypeError: the other side is of another version."""
    cls = BY_NAME[name]
    if cls is Generate:
        params = {**params, "sampling": Sampling(**params["sampling"])}
    message: Message = cls(**params)
    return message
