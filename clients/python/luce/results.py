"""What the daemon answers, as types. Fields that only a newer daemon knows are left out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Logprob:
    """`bytes`: what the token adds to the text. `top`: the most likely tokens in its place, best first."""

    id: int
    bytes: bytes
    logprob: float
    top: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of answer number `choice`, and the tokens that it came from."""

    choice: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total`: bytes (load), requests ahead (queue; total is 0) or prompt tokens (prefill)."""

    phase: str
    done: int
    total: int
    cached: int = 0


@dataclass(frozen=True)
class Choice:
    """One answer. finish: stop | length."""

    index: int
    text: str
    finish: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprob, ...] | None = None


@dataclass(frozen=True)
class Usage:
    """Counts of tokens, over all choices."""

    prompt: int
    cached: int
    generated: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Timings:
    """Seconds."""

    queue_s: float
    load_s: float
    prefill_s: float
    decode_s: float
    total_s: float


@dataclass(frozen=True)
class Answer:
    """The end of a request. `degraded`: what was not done as asked, in words."""

    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings
    seed: int
    degraded: tuple[str, ...]

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text


@dataclass(frozen=True)
class Limits:
    frame_bytes: int
    nesting: int
    items: int
    requests: int


@dataclass(frozen=True)
class Hello:
    """Who the daemon is, and what this connection may do."""

    level: int
    version: str
    instance: str
    tenant: str
    role: str
    limits: Limits
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Tokens:
    """`pieces`: the bytes of each token, if asked for."""

    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...] | None = None


@dataclass(frozen=True)
class Prompt:
    """What `chat` would send to the model."""

    prompt: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A model file. state: here | loading | loaded. `problem`: why it cannot be used."""

    name: str
    path: str
    bytes: int
    architecture: str
    quantisation: str
    parameters: int
    context: int
    default: bool
    state: str
    problem: str = ""


@dataclass(frozen=True)
class Status:
    """What the daemon is doing; docs/protocol.md says what is in the maps."""

    version: str
    instance: str
    pid: int
    uptime_s: float
    socket: dict[str, Any]
    engine: dict[str, Any]
    models: tuple[dict[str, Any], ...]
    requests: tuple[dict[str, Any], ...]


_NESTED: dict[str, type[Any]] = {
    "top": Logprob,
    "logprobs": Logprob,
    "choices": Choice,
    "usage": Usage,
    "timings": Timings,
    "limits": Limits,
}


def read(kind: type[T], given: dict[str, Any]) -> T:
    """A map of the wire as one of the types above. KeyError or TypeError: it is not one."""
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in given:
            value = given[field.name]
            inner = _NESTED.get(field.name)
            if isinstance(value, list):
                value = tuple(read(inner, item) for item in value) if inner else tuple(value)
            elif inner and value is not None:
                value = read(inner, value)
            values[field.name] = value
    return kind(**values)
