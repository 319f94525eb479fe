"""The client's side of a connection without I/O: requests are numbered, and what comes in goes to its request.

The blocking client and the async one are this and a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from . import wire
from .errors import LuceError, from_wire
from .messages import BY_NAME, LEVEL, MAX_FRAME_BYTES, TOPICS
from .results import Answer, Embeddings, Event, Hello, Loaded, Model, Progress, Prompt, Status, Text, Tokens, read

T = TypeVar("T")
Messages = str | Sequence[Mapping[str, str]]
StreamEvent = Text | Progress
Received = StreamEvent | Event
EVENTS: dict[str, type[Received]] = {"text": Text, "progress": Progress, "event": Event}  # by notification


class Sampling(TypedDict, total=False):
    """How an answer is made: messages.SAMPLING says what each means. What is left out is the daemon's default."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    logprobs: int
    max_tokens: int
    stop: Sequence[str]
    stop_ids: Sequence[int]
    ignore_eos: bool
    n: int
    stream: bool
    priority: str
    deadline_s: float
    keep_alive: str | float


class Embedding(TypedDict, total=False):
    """How embeddings are made: docs/protocol.md says what each means."""

    pooling: str
    normalise: bool
    dimensions: int
    priority: str
    deadline_s: float
    keep_alive: str | float


@dataclass(frozen=True)
class Ask(Generic[T]):
    """A method with its parameters, and how its result is read."""

    method: str
    params: dict[str, Any]
    read: Callable[[dict[str, Any]], T]


def hello(tenant: str, name: str) -> Ask[Hello]:
    params = {"level": LEVEL, "client": name, "tenant": tenant}
    return Ask("hello", params, lambda result: read(Hello, result))


def chat(messages: Messages, model: str, system: str | None, sampling: Mapping[str, Any]) -> Ask[Answer]:
    params = {"model": model, "messages": conversation(messages, system), **_sampling(sampling)}
    return Ask("chat", params, lambda result: read(Answer, result))


def complete(prompt: str | Sequence[int], model: str, sampling: Mapping[str, Any]) -> Ask[Answer]:
    params = {"model": model, "prompt": prompt, **_sampling(sampling)}
    return Ask("complete", params, lambda result: read(Answer, result))


def infill(
    prefix: str, suffix: str, extra: Mapping[str, str], filename: str, model: str, sampling: Mapping[str, Any]
) -> Ask[Answer]:
    files = [{"filename": name, "text": text} for name, text in extra.items()]
    params = {"model": model, "prefix": prefix, "suffix": suffix, "extra": files, "filename": filename}
    return Ask("infill", {**params, **_sampling(sampling)}, lambda result: read(Answer, result))


def embed(inputs: Sequence[str | Sequence[int]], model: str, options: Mapping[str, Any]) -> Ask[Embeddings]:
    given = [item if isinstance(item, str) else list(item) for item in inputs]
    return Ask("embed", {"model": model, "inputs": given, **options}, lambda result: read(Embeddings, result))


def tokenize(text: str, model: str, *, special: bool, bos: bool, pieces: bool) -> Ask[Tokens]:
    params = {"model": model, "text": text, "special": special, "bos": bos, "pieces": pieces}
    return Ask("tokenize", params, lambda result: read(Tokens, result))


def detokenize(tokens: Sequence[int], model: str, *, special: bool) -> Ask[str]:
    params = {"model": model, "tokens": list(tokens), "special": special}
    return Ask("detokenize", params, lambda result: _get(result, "text", str))


def template(messages: Messages, model: str, system: str | None) -> Ask[Prompt]:
    params = {"model": model, "messages": conversation(messages, system)}
    return Ask("template", params, lambda result: read(Prompt, result))


def models() -> Ask[tuple[Model, ...]]:
    return Ask("models", {}, lambda result: tuple(read(Model, model) for model in _get(result, "models", list)))


def load(model: str, n_ctx: int | None, kv_type: str | None, keep_alive: str | float | None) -> Ask[Loaded]:
    params = {"model": model, "n_ctx": n_ctx, "kv_type": kv_type, "keep_alive": keep_alive}
    return Ask("load", params, lambda result: read(Loaded, result["model"]))


def unload(model: str, *, force: bool) -> Ask[bool]:
    return Ask("unload", {"model": model, "force": force}, lambda result: _get(result, "unloaded", bool))


def status() -> Ask[Status]:
    return Ask("status", {}, lambda result: read(Status, result))


def subscribe(topics: Sequence[str]) -> Ask[None]:
    return Ask("subscribe", {"topics": list(topics or TOPICS)}, lambda result: None)


def cancel(request_id: int) -> Ask[bool]:
    return Ask("cancel", {"id": request_id}, lambda result: _get(result, "cancelled", bool))


def api() -> Ask[dict[str, Any]]:
    return Ask("api", {}, lambda result: _get(result, "api", dict))


def _get(result: dict[str, Any], name: str, kind: type[T]) -> T:
    value = result[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is a {type(value).__name__}")
    return value


def conversation(messages: Messages, system: str | None) -> list[dict[str, str]]:
    """A question alone is a message of the user; `system` goes before all."""
    first = [] if system is None else [{"role": "system", "content": system}]
    if isinstance(messages, str):
        return [*first, {"role": "user", "content": messages}]
    return [*first, *(dict(message) for message in messages)]


def _sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    bias = sampling.get("logit_bias")  # keys of maps are strings on the wire
    return {**sampling, "logit_bias": {str(token): value for token, value in bias.items()}} if bias else {**sampling}


@dataclass(eq=False)
class Call(Generic[T]):
    """A request that was sent: what came for it and was not looked at yet, and its end."""

    id: int
    ask: Ask[T]
    events: deque[Received] = field(default_factory=deque)
    has_ended: bool = False
    _result: T | None = None
    _error: LuceError | None = None

    def outcome(self) -> T:
        """The result, or its error raised; only after the end."""
        assert self.has_ended
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # there is one where there is no error

    def succeed(self, result: dict[str, Any]) -> None:
        self._result, self.has_ended = self.ask.read(result), True

    def fail(self, error: LuceError) -> None:
        self._error, self.has_ended = error, True


class Calls:
    """The open requests of one connection."""

    def __init__(self) -> None:
        self._connection = wire.Connection(wire.FROM_DAEMON)
        self._open: dict[int, Call[Any]] = {}
        self._next_id = 1  # 0 is in the answer to what had no id that could be read
        self._loss: LuceError | None = None
        self.frame_bytes = MAX_FRAME_BYTES  # that the daemon accepts

    def start(self, ask: Ask[T]) -> tuple[Call[T], bytes]:
        """A new call, and what to send for it. LuceError: it cannot be sent, and nothing has happened."""
        if self._loss is not None:
            raise self._loss
        call = Call(self._next_id, ask)
        data = wire.request(call.id, ask.method, ask.params)
        if len(data) > self.frame_bytes:
            raise LuceError("too_large", f"the request has {len(data)} bytes, the daemon takes {self.frame_bytes}")
        self._next_id = self._next_id % wire.MAX_ID + 1
        self._open[call.id] = call
        return call, data

    def cancel(self, call: Call[Any]) -> bytes:
        """Forget `call`: what to send; nothing if it has ended. What still comes for it is ignored."""
        if call.has_ended:
            return b""
        del self._open[call.id]
        call.events.clear()
        call.fail(LuceError("cancelled", "the request was cancelled"))
        request_id, self._next_id = self._next_id, self._next_id % wire.MAX_ID + 1
        return wire.request(request_id, "cancel", {"id": call.id})

    def feed(self, data: bytes) -> None:
        """Bytes from the daemon; none: it closed the connection. Once nothing more can be had, every call fails."""
        if not data:
            self.lose(LuceError("connection_lost", "the daemon closed the connection"))
            return
        self._connection.feed(data)
        try:
            for event in self._connection:
                self._take(event)
        except LuceError as error:
            self.lose(error)
        except (KeyError, TypeError) as error:
            self.lose(LuceError("bad_frame", f"the daemon sent what this client cannot read: {error}"))

    def lose(self, error: LuceError) -> None:
        """The connection is gone: every open call fails."""
        self._loss = self._loss or error
        for call in self._open.values():
            call.fail(self._loss)
        self._open.clear()

    def _take(self, event: wire.Event) -> None:
        match event:
            case wire.Response(request_id, error, result):
                if call := self._open.get(request_id):
                    if error is None:
                        call.succeed(result)
                    else:
                        call.fail(from_wire(error))
                    del self._open[request_id]
                elif request_id == 0 and error is not None:
                    raise from_wire(error)
            case wire.Notification(name, params) if kind := EVENTS.get(name):
                if call := self._open.get(params["id"]):
                    if name not in BY_NAME[call.ask.method].notifications:
                        raise TypeError(f"{call.ask.method} has no {name}")
                    call.events.append(read(kind, params))


def cannot_connect(path: Path, error: OSError) -> LuceError:
    """What an OSError at connect means to who asked."""
    data = {"path": str(path)}
    if isinstance(error, PermissionError):
        return LuceError("not_permitted", f"{path} is not open to this user", data, "ask to be added to its group")
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return LuceError("not_running", f"no daemon listens on {path}", data)
    return LuceError("not_running", f"cannot connect to {path}: {error.strerror or error}", data)
