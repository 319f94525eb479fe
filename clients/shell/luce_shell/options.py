"""Sampling parameters as words of a command line, read by the protocol's table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from luce.messages import SAMPLING

if TYPE_CHECKING:
    import click

FIELDS = {f.name: f for f in SAMPLING if f.name != "stream"}  # which is the command's own affair


class OptionError(Exception):
    """A name or value that is none; the message says which."""


def read_options(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parameters from (name, value) pairs. One that takes several values is given several times."""
    params: dict[str, Any] = {}
    for name, value in pairs:
        if name not in FIELDS:
            import difflib  # only now: it takes long

            close = difflib.get_close_matches(name, FIELDS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(FIELDS)}"
            raise OptionError(f"no parameter {name!r}; {hint}")
        kind = FIELDS[name].type
        try:
            if kind.startswith("list"):
                params.setdefault(name, []).append(_READERS[kind](value))
            elif kind.startswith("map"):
                token, _, bias = value.partition("=")
                params.setdefault(name, {})[int(token)] = float(bias)
            else:
                params[name] = _READERS[kind](value)
        except (ValueError, KeyError):
            raise OptionError(f"{name} is {_WORDS[kind]}, not {value!r}") from None
    return params


_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "duration": str,
    "bool": {"true": True, "false": False}.__getitem__,
    "list[str]": str,
    "list[int]": int,
}
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "list[int]": "an integer",
    "map[int,float]": "TOKEN=NUMBER",
}


def complete_option(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names that begin so."""
    return [name for name in FIELDS if name.startswith(incomplete)]
