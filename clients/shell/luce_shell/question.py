"""What is asked: fragments, what comes through a pipe, and the argument, joined."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import BinaryIO

import click

from luce.messages import MAX_FRAME_BYTES
from luce_shell.exits import BY_ACTOR, NO_FILE, USAGE, Failure

STDIN = "-"


def read_question(argument: str | None, fragments: Sequence[str]) -> str:
    """Blank lines between the parts. A pipe that no fragment names goes before the argument."""
    parts = [_fragment(name) for name in fragments]
    if STDIN not in fragments and sys.stdin is not None and not sys.stdin.isatty():
        parts.append(_stdin())
    if argument is not None:
        parts.append(typed("the question", argument))
    question = "\n\n".join(part for part in parts if part)
    if not question.strip():
        raise click.UsageError("there is no question")
    return question


def typed(what: str, text: str) -> str:
    """A word of the command line. Failure: it was no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _not_text(what, error.start) from None
    return text


def _fragment(name: str) -> str:
    if name == STDIN:
        return _stdin()
    try:
        with open(name, "rb") as file:
            return _text(name, file)
    except OSError as error:
        raise Failure(f"{name}: {error.strerror}", "-f takes the name of a file, or - for a pipe", NO_FILE) from None


def _stdin() -> str:
    return _text("standard input", sys.stdin.buffer)


def _text(what: str, file: BinaryIO) -> str:
    data = file.read(MAX_FRAME_BYTES + 1)
    if len(data) > MAX_FRAME_BYTES:  # it may never end
        too_much = f"{what} has more than the {MAX_FRAME_BYTES >> 20} MiB that the daemon takes at once"
        raise Failure(too_much, "send a part of it", BY_ACTOR["caller"])
    try:
        return data.decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise _not_text(what, error.start) from None


def _not_text(what: str, position: int) -> Failure:
    return Failure(f"{what} is not UTF-8 (byte {position})", "convert it, with iconv say", USAGE)
