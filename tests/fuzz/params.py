"""Parameters of any method: values of the types in the table, or an error that says which one is wrong."""

from __future__ import annotations

from typing import Any

import msgpack

from luce.fields import Field
from luce.messages import METHODS, check
from tests.fuzz.choices import Choices, typed

USUAL: dict[str, Any] = {
    "str": "a",
    "int": 1,
    "float": 0.5,
    "bool": True,
    "duration": "1h30m",
    "list[str]": ["a", "b"],
    "list[int]": [1, 2],
    "str|list[int]": [1],
    "list[str|list[int]]": ["a", [1]],
    "map[int,float]": {"1": 0.5},
    "list[Message]": [{"role": "user", "content": "hi"}],
    "list[File]": [{"filename": "a", "text": "b"}],
}


def fuzz_params(data: bytes) -> None:
    choices = Choices(data)
    method = choices.pick(METHODS)
    given = {f.name: USUAL[f.type] for f in method.params if f.required}
    while choices.are_left:
        name = choices.pick([f.name for f in method.params]) if method.params and choices.flag() else choices.text()
        given[name] = choices.value()
    with typed("bad_parameter", "missing_parameter", "unknown_parameter"):
        values = check(method, given)
        assert set(values) == {f.name for f in method.params}
        msgpack.packb(values)
        for f in method.params:
            _check_range(f, values[f.name])


def _check_range(f: Field, value: Any) -> None:
    if value is None or isinstance(value, str):
        return
    size = len(value) if isinstance(value, list | dict) else value
    assert f.low is None or size >= f.low
    assert f.high is None or size <= f.high
