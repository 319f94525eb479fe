"""The type of the KV cache as an option of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from luce.errors import LuceError
from luce.fields import read_fields
from luce.messages import KV_TYPE, KV_TYPES

F = TypeVar("F", bound=Callable[..., Any])


def kv_option(default: str | None, absent: str = "") -> Callable[[F], F]:
    """--kv TYPE[/TYPE]; `absent` says what holds where neither it nor a default is given."""
    text = f"Type of the KV cache, or of its keys and its values: {', '.join(KV_TYPES)}."
    return click.option(
        "--kv",
        metavar="TYPE[/TYPE]",
        default=default,
        show_default=default is not None,
        callback=_check,
        shell_complete=_complete,
        help=f"{text} Default: {absent}." if absent else text,
    )


def _check(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return read_fields("kv", (KV_TYPE,), {"kv_type": value}, ())["kv_type"] if value else None
    except LuceError:
        raise click.BadParameter(f"{value!r} is not one of {', '.join(KV_TYPES)}, nor two with a slash") from None


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    begun, slash, _ = incomplete.rpartition("/")
    return [begun + slash + t for t in KV_TYPES if (begun + slash + t).startswith(incomplete)]
