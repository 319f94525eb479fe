"""What the daemon answers, as types. Fields that only a newer daemon knows are left out."""

from __future__ import annotations

import builtins
import functools
import re
from dataclasses import dataclass, fields, is_dataclass
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
    """`done` of `total`: bytes (load), requests ahead (queue; total is 0), tokens (prefill), or how often the engine
    has been started again (restart)."""

    phase: str
    done: int
    total: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened `at` (Unix time). The first of a subscription has no topic: from then on it holds."""

    topic: str
    event: str
    at: float
    facts: dict[str, Any]


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
    restart_s: float = 0.0


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
class Embeddings:
    """A vector for each input. `pooling`: mean | last | cls, what was made of the tokens' states."""

    model: str
    embeddings: tuple[list[float], ...]
    pooling: str
    usage: Usage
    timings: Timings


@dataclass(frozen=True)
class Limits:
    frame_bytes: int
    nesting: int
    items: int
    requests: int
    connections: int = 0  # 0: an older daemon, which does not tell
    connections_of_user: int = 0
    queue: int = 0
    queue_of_user: int = 0


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
    """A model file. state: here | loading | loaded. `problem`: why it cannot be used. `settings`: what the daemon's
    configuration sets for it."""

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
    aliases: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None


@dataclass(frozen=True)
class Socket:
    path: str
    mode: str
    group: str
    problem: str


@dataclass(frozen=True)
class Engine:
    """state: starting | ready | stopped | failed. What only a ready engine knows is None before."""

    state: str
    pid: int | None
    device: str | None
    isa: str | None
    threads: int | None
    restarts: int
    last_failure: str
    kind: str | None = None
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cache:
    """The KV cache of a model: pages now, and counts since it was loaded."""

    pages: int
    used: int
    cached: int
    steps: int
    rows: int
    cached_tokens: int
    preempted: int
    evicted: int


@dataclass(frozen=True)
class Loaded:
    """A model in memory. `memory`: bytes by owner. `requests`: how many use it. `until`: when it leaves if nobody asks
    it before; None: it stays. Times are Unix times. `cache` is None when the engine is too busy."""

    name: str
    memory: dict[str, int]
    context: int
    since: float
    cache: Cache | None = None
    requests: int = 0
    until: float | None = None


@dataclass(frozen=True)
class Running:
    """A request that has not ended. phase: load | queue | prefill | decode | paused | restart."""

    id: int
    client: str
    model: str
    phase: str
    prompt: int
    generated: int
    age_s: float


@dataclass(frozen=True)
class Status:
    """What the daemon is doing. `requests`: those that the caller may see."""

    version: str
    instance: str
    pid: int
    uptime_s: float
    socket: Socket
    engine: Engine
    models: tuple[Loaded, ...]
    requests: tuple[Running, ...]
    inference_socket: Socket | None = None


def read(kind: type[T], given: dict[str, Any]) -> T:
    """A map of the wire as one of the types above. TypeError: it is not one."""
    if type(given) is not dict:
        raise TypeError(f"{kind.__name__} is a {type(given).__name__}")
    known = _fields(kind)  # type: ignore[arg-type]  # a class can be hashed
    values = {name: field.read(given[name]) for name, field in known.items() if name in given}
    return kind(**values)


@dataclass(frozen=True)
class _Kind:
    """What a field may hold: `many` of one thing, or one; each a type above or one of the wire's."""

    thing: type[Any]
    many: bool
    is_optional: bool

    def read(self, value: Any) -> Any:
        if value is None and self.is_optional:
            return None
        if not self.many:
            return self._one(value)
        if type(value) is not list:
            raise TypeError(f"a {type(value).__name__} stands where a list belongs")
        return tuple(map(self._one, value))

    def _one(self, value: Any) -> Any:
        if is_dataclass(self.thing):
            return read(self.thing, value)
        if type(value) is self.thing or (self.thing is float and type(value) is int):
            return value
        raise TypeError(f"a {type(value).__name__} stands where a {self.thing.__name__} belongs")


@functools.cache
def _fields(kind: type[Any]) -> dict[str, _Kind]:
    """Of a type, by name; the annotations of this file are strings."""
    found = {}
    for field in fields(kind):
        words = re.findall(r"\w+", str(field.type))
        many = words[0] == "tuple"
        thing = words[1] if many else words[0]
        found[field.name] = _Kind(globals().get(thing) or getattr(builtins, thing), many, words[-1] == "None")
    return found
