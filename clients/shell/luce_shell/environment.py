"""What the commands read of the environment: all of it is here."""

from __future__ import annotations

import os
from pathlib import Path


def log_path() -> Path:
    """Of the conversation log. RuntimeError: there is no home folder."""
    data = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return folder / "luce" / "logs.db"


def terminal_is_dumb() -> bool:
    """It cannot move its cursor."""
    return os.environ.get("TERM", "dumb") in ("", "dumb")


def wants_no_color() -> bool:
    return bool(os.environ.get("NO_COLOR"))


def completion_request(variable: str) -> str:
    """What a completion script asks a command to do instead of its work; empty: nothing."""
    return os.environ.get(variable, "")
