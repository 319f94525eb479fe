"""Anything that a daemon may send to the Python client: every call ends, with a result or an error."""

from __future__ import annotations

from typing import Any

from luce import calls, wire
from luce.calls import Ask, Calls
from luce.errors import LuceError
from tests.fuzz.choices import Choices

ASKS: tuple[Ask[Any], ...] = (
    calls.hello("", "fuzz"),
    calls.chat("hi", "", None, {}),
    calls.embed(["a"], "", {}),
    calls.tokenize("a", "", special=False, bos=False, pieces=True),
    calls.detokenize([1], "", special=True),
    calls.template("hi", "", None),
    calls.models(),
    calls.load("", None, None, None),
    calls.unload("", force=False),
    calls.status(),
    calls.subscribe(()),
    calls.cancel(1),
    calls.api(),
)
NAMES = (
    "id", "text", "tokens", "choice", "choices", "logprobs", "phase", "done", "total", "topic", "event", "at", "facts",
    "model", "models", "usage", "timings", "seed", "degraded", "limits", "level", "api", "prompt", "embeddings",
    "unloaded", "cancelled", "code", "name", "message", "data", "engine", "requests", "socket",
)  # fmt: skip


def fuzz_replies(data: bytes) -> None:
    """The first byte says whether the rest are frames' bytes, or decide what well-formed frames hold."""
    choices = Choices(data)
    connection = Calls()
    open_calls = [connection.start(ask)[0] for ask in ASKS]
    if choices.flag():
        connection.feed(choices.rest())
    while choices.are_left:
        connection.feed(_frame(choices))
    connection.feed(b"")
    for call in open_calls:
        assert call.has_ended
        try:
            call.outcome()
        except LuceError as error:
            str(error)


def _frame(choices: Choices) -> bytes:
    request_id = choices.below(len(ASKS) + 2)
    match choices.below(3):
        case 0:
            return wire.response(request_id, None, _map(choices))
        case 1:
            return wire.response(request_id, choices.value(), choices.value())
        case _:
            return wire.notification(
                choices.pick(("text", "progress", "event", "x")), {"id": request_id, **_map(choices)}
            )


def _map(choices: Choices, depth: int = 3) -> dict[str, Any]:
    def value() -> Any:
        match choices.below(4) if depth else 0:
            case 0:
                return choices.value(2)
            case 1:
                return [_map(choices, depth - 1) for _ in range(choices.below(3))]
            case 2:
                return _map(choices, depth - 1)
            case _:
                return choices.text()

    return {choices.pick(NAMES): value() for _ in range(choices.below(8))}
