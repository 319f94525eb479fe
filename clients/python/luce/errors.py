"""Errors as they travel on the wire, and as a client raises them.

Every error has a stable code, says who must act (`caller`, `peer`, `operator`, `supervisor`) and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_CHARS = 1000  # of a text in an error on the wire: it may quote what a peer or a file made as long as it liked


@dataclass(frozen=True)
class Code:
    """One kind of error: its number and name never change."""

    number: int
    name: str
    actor: str
    remedy: str


CODES: tuple[Code, ...] = (
    Code(100, "bad_frame", "peer", "send MessagePack-RPC as docs/protocol.md describes it"),
    Code(101, "too_large", "peer", "send less at once; hello tells the limits"),
    Code(102, "hello_first", "peer", "call hello before any other method"),
    Code(103, "unsupported_level", "peer", "use a client for this protocol level"),
    Code(200, "unknown_method", "caller", "call api for the methods there are"),
    Code(201, "unknown_parameter", "caller", "remove the parameter, or correct its name"),
    Code(202, "missing_parameter", "caller", "give the parameter"),
    Code(203, "bad_parameter", "caller", "give a value of the type and range that is named"),
    Code(204, "unknown_model", "caller", "`luced models` lists the models there are"),
    Code(205, "context_too_long", "caller", "shorten the prompt, or ask for fewer tokens"),
    Code(206, "bad_template", "caller", "change the messages so that the model's chat template accepts them"),
    Code(207, "not_supported", "caller", "ask for something that this model can do"),
    Code(208, "busy", "caller", "try again later"),
    Code(209, "not_permitted", "caller", "ask one who may: the message names them"),
    Code(210, "deadline", "caller", "allow more time"),
    Code(211, "cancelled", "caller", "none: the request was cancelled"),
    Code(212, "not_running", "caller", "start the daemon: `luced serve`"),
    Code(213, "too_slow", "caller", "read what is sent, or subscribe to less"),
    Code(214, "engine_crash", "caller", "change the request; the daemon's operator finds a report of it"),
    Code(300, "bad_model_file", "operator", "replace the file; `luced models --check` tells what is wrong with it"),
    Code(301, "unsupported_model", "operator", "use one of another architecture: `luced models --architectures`"),
    Code(302, "no_memory", "operator", "use a smaller model or context, or free memory"),
    Code(303, "no_device", "operator", "choose a device that is there"),
    Code(304, "bad_config", "operator", "correct the setting that is named"),
    Code(400, "engine_failed", "supervisor", "ask again: the engine is being restarted"),
    Code(401, "shutting_down", "supervisor", "ask again when the daemon is back"),
    Code(402, "connection_lost", "supervisor", "connect and ask again"),
    Code(500, "internal", "supervisor", "report this: it is a bug in luced"),
)
BY_NAME = {code.name: code for code in CODES}
BY_NUMBER = {code.number: code for code in CODES}


@dataclass(eq=False)
class LuceError(Exception):
    """An error of the daemon, by code name; `data` holds the facts (numbers, names) behind the message."""

    name: str
    message: str
    data: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""

    def __post_init__(self) -> None:
        super().__init__(self.message)
        self.remedy = self.remedy or self.code.remedy

    @property
    def code(self) -> Code:
        return BY_NAME.get(self.name, BY_NAME["internal"])

    def __str__(self) -> str:
        return self.message

    def to_wire(self) -> dict[str, Any]:
        return {
            "code": self.code.number,
            "name": self.code.name,
            "actor": self.code.actor,
            "message": _cut(self.message),
            "remedy": self.remedy,
            "data": {name: _cut(fact) if isinstance(fact, str) else fact for name, fact in self.data.items()},
        }


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def from_wire(error: object) -> LuceError:
    """The error of a response, whatever a peer of another version made of it."""
    if not isinstance(error, dict):
        return LuceError("internal", str(error))
    name = str(error.get("name", "internal"))
    data = error.get("data")
    return LuceError(
        name if name in BY_NAME else "internal",
        str(error.get("message", name)),
        data if isinstance(data, dict) else {},
        str(error.get("remedy", "")),
    )
