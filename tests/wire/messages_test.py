"""The protocol table: it is consistent, and values are read by it as it says."""

from __future__ import annotations

from typing import Any

import pytest

from luce import api, errors, messages, wire
from luce.errors import LuceError
from luce.fields import seconds
from luce.messages import BY_NAME, METHODS, NOTIFICATIONS, SAMPLING, check
from luce.structs import TYPES

CHAT = BY_NAME["chat"]
HELLO = [{"role": "user", "content": "hello"}]
NAN, INFINITE = float("nan"), float("inf")


def test_table_is_consistent() -> None:
    assert len(BY_NAME) == len(METHODS)
    notifications = {n.name for n in NOTIFICATIONS}
    for method in METHODS:
        assert set(method.notifications) <= notifications
    plain = {
        "str",
        "int",
        "float",
        "bool",
        "bytes",
        "map",
        "duration",
        "list[float]",
        "str|list[int]",
        "map[int,float]",
        "map[str,int]",
        "str[/str]",
    } | {t.name for t in TYPES}
    lists = {f"list[{name}]" for name in plain}
    owners = [*((m.name, m.params + m.result) for m in METHODS), *((t.name, t.fields) for t in TYPES)]
    for owner, fields in [*owners, *((n.name, n.fields) for n in NOTIFICATIONS)]:
        for field in fields:
            assert field.type in plain | lists, (owner, field)


def test_codes_are_unique() -> None:
    assert len(errors.BY_NAME) == len(errors.BY_NUMBER) == len(errors.CODES)


def test_defaults() -> None:
    values = check(CHAT, {"messages": HELLO})
    assert set(values) == {"model", "messages"} | {f.name for f in SAMPLING}
    assert (values["temperature"], values["seed"], values["stop"]) == (0.8, None, [])
    values["stop"].append("x")
    assert check(CHAT, {"messages": HELLO})["stop"] == []


def test_values_are_read() -> None:
    values = check(CHAT, {"messages": HELLO, "temperature": 1, "logit_bias": {"5": 1, 6: -0.5}, "seed": None})
    assert (type(values["temperature"]), values["temperature"]) == (float, 1.0)
    assert values["logit_bias"] == {5: 1.0, 6: -0.5}
    assert values["seed"] is None


@pytest.mark.parametrize(
    ("duration", "wanted"),
    [
        *(("10m", 600), ("1h30m", 5400), ("1.5s", 1.5), ("250ms", 0.25), ("90", 90), (90, 90), ("0", 0), (0, 0)),
        *((-1, INFINITE), ("-1", INFINITE), ("-1s", INFINITE), (-0.5, INFINITE)),
    ],
)
def test_durations(duration: str | float, wanted: float) -> None:
    assert seconds(duration) == wanted


@pytest.mark.parametrize(
    ("method", "params", "code", "words"),
    [
        ("chat", {}, "missing_parameter", "messages"),
        ("chat", {"messages": None}, "missing_parameter", "messages"),
        ("chat", {"messages": HELLO, "temprature": 1}, "unknown_parameter", "did you mean 'temperature'"),
        ("chat", {"messages": HELLO, b"x": 1}, "unknown_parameter", "x"),
        ("chat", {"messages": "hello"}, "bad_parameter", "messages must be list[Message], not 'hello'"),
        ("chat", {"messages": ["hello"]}, "bad_parameter", "messages"),
        ("chat", {"messages": [{"role": "user"}]}, "missing_parameter", "messages[0] needs the parameter 'content'"),
        ("chat", {"messages": [{"role": "God", "content": ""}]}, "bad_parameter", "messages[0]: role must be one of"),
        ("chat", {"messages": [*HELLO, {"role": "user", "content": 5}]}, "bad_parameter", "messages[1]: content"),
        ("chat", {"messages": [{"role": "user", "content": "", "nmae": ""}]}, "unknown_parameter", "nmae"),
        ("chat", {"messages": HELLO, "temperature": -0.1}, "bad_parameter", "temperature must be at least 0"),
        ("chat", {"messages": HELLO, "temperature": NAN}, "bad_parameter", "temperature"),
        ("chat", {"messages": HELLO, "presence_penalty": -INFINITE}, "bad_parameter", "presence_penalty"),
        ("chat", {"messages": HELLO, "temperature": True}, "bad_parameter", "temperature must be float"),
        ("chat", {"messages": HELLO, "temperature": "1"}, "bad_parameter", "temperature must be float, not '1'"),
        ("chat", {"messages": HELLO, "top_k": 1.0}, "bad_parameter", "top_k must be int, not 1.0"),
        ("chat", {"messages": HELLO, "top_k": True}, "bad_parameter", "top_k"),
        ("chat", {"messages": HELLO, "stop": ["x"] * 33}, "bad_parameter", "stop must be at most 32 items, not 33"),
        ("chat", {"messages": HELLO, "n": 65}, "bad_parameter", "n must be at most 64"),
        ("chat", {"messages": HELLO, "seed": -1}, "bad_parameter", "seed"),
        ("chat", {"messages": HELLO, "stop": "x"}, "bad_parameter", "stop must be list[str]"),
        ("chat", {"messages": HELLO, "stop_ids": [1, True]}, "bad_parameter", "stop_ids"),
        ("chat", {"messages": HELLO, "logit_bias": {"x": 1}}, "bad_parameter", "logit_bias"),
        ("chat", {"messages": HELLO, "logit_bias": {"1": INFINITE}}, "bad_parameter", "logit_bias"),
        ("chat", {"messages": HELLO, "priority": "now"}, "bad_parameter", "interactive, agent, batch"),
        ("chat", {"messages": HELLO, "keep_alive": "10 minutes"}, "bad_parameter", "keep_alive must be duration"),
        ("chat", {"messages": HELLO, "keep_alive": "1h m"}, "bad_parameter", "keep_alive"),
        ("chat", {"messages": HELLO, "keep_alive": "inf"}, "bad_parameter", "keep_alive"),
        ("chat", {"messages": HELLO, "keep_alive": True}, "bad_parameter", "keep_alive"),
        ("complete", {"prompt": [1, "2"]}, "bad_parameter", "prompt must be str|list[int]"),
        ("embed", {"inputs": []}, "bad_parameter", "inputs must be at least 1"),
        ("embed", {"inputs": "a"}, "bad_parameter", "inputs must be list[str|list[int]]"),
        ("embed", {"inputs": ["a", [1, "2"]]}, "bad_parameter", "inputs must be list[str|list[int]]"),
        ("embed", {"inputs": ["a"], "pooling": "rank"}, "bad_parameter", "mean, last, cls"),
        ("infill", {"prefix": "a", "extra": [{"text": "b"}]}, "missing_parameter", "extra[0] needs"),
        ("cancel", {"id": "1"}, "bad_parameter", "id must be int"),
        ("models", {"x": 1}, "unknown_parameter", "models has no parameter 'x'"),
    ],
)
def test_refused(method: str, params: dict[Any, Any], code: str, words: str) -> None:
    with pytest.raises(LuceError) as raised:
        check(messages.BY_NAME[method], params)
    assert raised.value.name == code
    assert words in raised.value.message
    assert raised.value.to_wire()["actor"] == "caller"


def test_the_table_travels() -> None:
    connection = wire.Connection()
    connection.feed(wire.response(1, None, {"api": api.describe()}))
    event = connection.next_event()
    assert isinstance(event, wire.Response)
    assert event.result == {"api": api.describe()}
