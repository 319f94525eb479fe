"""The four classes of failure (docs/architecture.md §12), by who must act, and their wire codes."""

from __future__ import annotations

from typing import Any

from luce.errors import BY_NAME, LuceError


class _Failure(LuceError):
    """A failure whose code must be one that its actor can act on."""

    actor = ""

    def __init__(self, name: str, message: str, remedy: str = "", **data: Any) -> None:
        assert BY_NAME[name].actor == self.actor, (name, self.actor)
        super().__init__(name, message, data, remedy)


class ProtocolError(_Failure):
    """The peer broke the protocol: the connection closes."""

    actor = "peer"


class RequestError(_Failure):
    """The caller asked for what cannot be: that request ends, the connection lives."""

    actor = "caller"


class ModelError(_Failure):
    """A model cannot be used: it is refused, the daemon lives."""

    actor = "operator"


class EngineError(_Failure):
    """The engine failed: it is restarted."""

    actor = "supervisor"
