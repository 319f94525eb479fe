"""Conversations in which formats of families differ, and where what published templates make of them is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

GOLDENS = Path(__file__).with_name("goldens") / "families.json"
BOS, EOS = "<BOS>", "<EOS>"

Message = dict[str, Any]


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


CALLS = (
    Call("weather", {"city": 'Bern\n"CH" {x} é', "days": 2, "units": {"all": ["°C", 1.5, True, {}], "none": False}}),
    Call("time", {}),
)


class Conversation(NamedTuple):
    messages: list[Message]
    thinking: bool | None = None  # enable_thinking, where it is given
    asks: bool = True  # add_generation_prompt


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def _tool(text: str) -> Message:
    return {"role": "tool", "content": text}


_SYSTEM = {"role": "system", "content": "Be brief."}
_TOOL_CALLS = [{"type": "function", "function": call._asdict()} for call in CALLS]

CONVERSATIONS = {
    "asked": Conversation([_user("Why?")]),
    "told": Conversation([_SYSTEM, _user("Why?"), _assistant("So."), _user("And?")]),
    "spaces": Conversation([_user("  a\n\n"), _assistant("b\n\nb"), _user("\tc ")]),
    "thinking": Conversation([_SYSTEM, _user("Why?"), _assistant("So."), _user("And?")], True),
    "not thinking": Conversation([_user("Why?"), _assistant("So."), _user("And?")], False),
    "thought before": Conversation([_user("Why?"), _assistant("So.", reasoning_content="Hm."), _user("And?")]),
    "tools answered": Conversation([_user("Why?"), _assistant("Wait."), _tool("42"), _tool("43")]),
    "called": Conversation(
        [_SYSTEM, _user("Why?"), _assistant("Wait.", reasoning_content="Hm.", tool_calls=_TOOL_CALLS)],
        thinking=True,
        asks=False,
    ),
}


def goldens() -> dict[str, dict[str, str]]:
    """Texts by published template and conversation; those that a template refuses are not there."""
    kept: dict[str, dict[str, str]] = json.loads(GOLDENS.read_text())
    return kept
