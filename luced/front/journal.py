"""The log: one line for each thing that happened, `what key=value ...`. Never a prompt, nor anything made from one."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback

PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}  # syslog's
_PLAIN = re.compile(r"[\w./:+@%-]+")


def entry(what: str, /, **facts: object) -> str:
    """A line of the log; facts that are empty or None are left out. A request is named CONNECTION/ID."""
    pairs = [f"{key}={_value(value)}" for key, value in facts.items() if value not in (None, "")]
    return " ".join([what, *pairs])


def _value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def describe_bug(bug: BaseException) -> str:
    """Its type and place, for the log. Not its message, which may quote a prompt."""
    inner = [describe_bug(e) for e in bug.exceptions] if isinstance(bug, BaseExceptionGroup) else []
    return "".join([*traceback.format_tb(bug.__traceback__), type(bug).__name__, *inner])


def start(to_journal: bool) -> None:
    """Logs to stderr; the journal has the time itself, and wants the priority."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ForJournal() if to_journal else logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _ForJournal(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return f"<{PRIORITIES.get(record.levelno, 6)}>{super().format(record)}"
