"""Client of luced, the daemon that keeps one warm engine for the models of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import Client, Stream, Subscription
from .errors import LuceError
from .results import Answer, Choice, Event, Logprob, Model, Progress, Prompt, Status, Text, Timings, Tokens, Usage

if TYPE_CHECKING:
    from .aio import AsyncClient

__version__ = "0.1.0"  # as luced's: they are released together

__all__ = [
    "Answer",
    "AsyncClient",
    "Choice",
    "Client",
    "Event",
    "Logprob",
    "LuceError",
    "Model",
    "Progress",
    "Prompt",
    "Status",
    "Stream",
    "Subscription",
    "Text",
    "Timings",
    "Tokens",
    "Usage",
]


def __getattr__(name: str) -> Any:
    """AsyncClient, only when it is asked for: it needs trio."""
    if name == "AsyncClient":
        from .aio import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
