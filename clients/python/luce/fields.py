"""What the protocol table is made of, and how given values are read by it."""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import LuceError

REQUIRED = object()
MAX_SHOWN = 60  # characters of what was given, in an error
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Field:
    """One parameter or result field. `type` is explained in docs/protocol.md; a default of None means absent. `low` and
    `high` bound a number, or how many items a list or map and how many characters a text has. Of a choice that ends in
    :N, N stands for a number."""

    name: str
    type: str
    doc: str
    default: Any = REQUIRED
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Type:
    """A map with these fields."""

    name: str
    doc: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Notification:
    """Something the daemon says of a running request; its field `id` is the request's."""

    name: str
    doc: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Method:
    name: str
    doc: str
    params: tuple[Field, ...] = ()
    result: tuple[Field, ...] = ()
    notifications: tuple[str, ...] = ()
    role: str = "user"  # the least that may call it, of messages.ROLES
    computes: bool = False  # it may wait for a model and for its turn


Types = tuple[Type, ...]


def read_fields(where: str, fields: tuple[Field, ...], given: dict[str, Any], types: Types) -> dict[str, Any]:
    """A value for every field; nil counts as not given. LuceError: unknown, missing, or of the wrong type or range."""
    known = {f.name for f in fields}
    for name in given:
        if name not in known:
            name = str(name)[:MAX_SHOWN]
            close = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise LuceError("unknown_parameter", f"{where} has no parameter {name!r}{hint}", {"parameter": name})
    values = {}
    for f in fields:
        value = given.get(f.name)
        if value is not None:
            values[f.name] = _read(f"{where}: {f.name}", f, value, types)
        elif f.required:
            raise LuceError("missing_parameter", f"{where} needs the parameter {f.name!r}", {"parameter": f.name})
        else:
            values[f.name] = copy.copy(f.default)
    return values


def _read(where: str, f: Field, value: Any, types: Types) -> Any:
    def bad(why: str) -> LuceError:
        return LuceError("bad_parameter", f"{where} must be {why}", {"parameter": f.name})

    unit = _UNITS.get(type(value), "")
    if unit and f.high is not None and len(value) > f.high:  # before each of them is looked at
        raise bad(f"at most {f.high}{unit}, not {len(value)}")
    for t in types:
        if f.type == f"list[{t.name}]":
            if type(value) is not list or any(type(x) is not dict for x in value):
                raise bad(f"{f.type}, not {_short(value)}")
            return [read_fields(f"{where}[{i}]", t.fields, x, types) for i, x in enumerate(value)]
    try:
        value = _READERS[f.type](value)
    except (TypeError, ValueError, OverflowError):
        raise bad(f"{f.type}, not {_short(value)}") from None
    size = len(value) if unit else value
    if f.low is not None and size < f.low:
        raise bad(f"at least {f.low}{unit}, not {size}")
    if f.high is not None and size > f.high:
        raise bad(f"at most {f.high}{unit}, not {size}")
    ones = value if type(value) is list else value.split("/") if f.type == "str[/str]" else [value]
    if f.choices and any(re.sub(r":\d{1,3}$", ":N", one) not in f.choices for one in ones):
        raise bad(f"one of {', '.join(f.choices)}, not {_short(value)}")
    return value


def seconds(duration: str | float) -> float:
    """Of a number, or of text like "90", "10m" or "1h30m"; what is negative is for ever: infinity. ValueError."""
    if isinstance(duration, str):
        parts = re.findall(r"([\d.]+)(ms|s|m|h)", duration)
        sign, text = ("-", duration[1:]) if duration.startswith("-") else ("", duration)
        if parts and "".join(n + unit for n, unit in parts) == text:
            duration = float(f"{sign}1") * sum(float(n) * _UNIT_S[unit] for n, unit in parts)
    value = float(duration)
    if not math.isfinite(value):
        raise ValueError
    return math.inf if value < 0 else value


def _short(value: Any) -> str:
    if type(value) is int and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        value = value[:MAX_SHOWN]
    text = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _just(wanted: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not wanted:
            raise TypeError
        return value

    return read


def _list_of(wanted: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not list or not set(map(type, value)) <= {wanted}:
            raise TypeError
        return value

    return read


def _int(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 64:  # a file may name larger ones
        raise TypeError
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError
    return float(value)


def _inputs(value: Any) -> list[str | list[int]]:
    if type(value) is not list:
        raise TypeError
    return [_READERS["str|list[int]"](item) for item in value]


def _duration(value: Any) -> str | float:
    if type(value) not in (str, int, float) or (type(value) is str and len(value) > MAX_SHOWN):
        raise TypeError
    seconds(value)
    return value  # type: ignore[no-any-return]  # one of the three


def _one_or_two(value: Any) -> str:
    if type(value) is not str or value.count("/") > 1:
        raise TypeError
    first, _, second = value.partition("/")
    return first if first == second else value


def _biases(value: Any) -> dict[int, float]:
    if type(value) is not dict:
        raise TypeError
    return {int(key): _float(bias) for key, bias in value.items()}


_UNITS: dict[type, str] = {list: " items", dict: " items", str: " characters"}
_READERS: dict[str, Callable[[Any], Any]] = {
    "str": _just(str),
    "int": _int,
    "float": _float,
    "bool": _just(bool),
    "duration": _duration,
    "str[/str]": _one_or_two,
    "list[str]": _list_of(str),
    "list[int]": _list_of(int),
    "str|list[int]": lambda value: value if type(value) is str else _list_of(int)(value),
    "list[str|list[int]]": _inputs,
    "map[int,float]": _biases,
}
