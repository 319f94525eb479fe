"""luce.wire: every frame whole, byte by byte and in company; every kind of broken frame; any bytes at all."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import LuceError
from luce.wire import (
    FROM_DAEMON,
    Connection,
    Event,
    Limits,
    Notification,
    Request,
    Response,
    TrustedConnection,
    notification,
    request,
    response,
)

PROMPT = [0, 127, 128, 255, 256, 65535, 65536, 1 << 40]
SCALARS = {"text": "s" * 40 + "t" * 300, "x": -1, "y": -200, "z": [-70000, -(1 << 40), True, False, None]}
CHAT = {"messages": [{"role": "user", "content": "é\U0001f600"}]}
PIECES = {"pieces": [b"\xff", b"x" * 300, b"y" * 70000]}
WIDE: dict[str, list[int]] = {str(i): [] for i in range(20)}
WIDER: dict[str, dict[str, int]] = {str(i): {} for i in range(70000)}
FRAMES: list[tuple[bytes, Event]] = [
    (request(1, "hello", {"level": 1}), Request(1, "hello", {"level": 1})),
    (request(0xFFFFFFFF, "models", {}), Request(0xFFFFFFFF, "models", {})),
    (request(0, "chat", CHAT), Request(0, "chat", CHAT)),
    (request(7, "complete", {"prompt": PROMPT, "t": 0.5}), Request(7, "complete", {"prompt": PROMPT, "t": 0.5})),
    (response(3, None, PIECES), Response(3, None, PIECES)),
    (response(3, {"name": "busy"}, None), Response(3, {"name": "busy"}, None)),
    (notification("text", SCALARS), Notification("text", SCALARS)),
    (notification("wide", WIDE), Notification("wide", WIDE)),
    (notification("wider", WIDER), Notification("wider", WIDER)),
    # params [] as libraries send it for no arguments
    (bytes.fromhex("94 00 01 a6 737461747573 90"), Request(1, "status", {})),
    # every length longer than it need be
    (bytes.fromhex("dc0004 d10000 ce00000001 d906 737461747573 dd00000001 de0000"),
     Request(1, "status", {})),
    (bytes.fromhex("93 02 a1 66 91 81 a1 78 ca 3f800000"), Notification("f", {"x": 1.0})),
]  # fmt: skip
SMALL = [pair for pair in FRAMES if len(pair[0]) < 1000]


@pytest.mark.parametrize(("data", "event"), FRAMES)
def test_whole(data: bytes, event: Event) -> None:
    connection = Connection()
    connection.feed(data)
    assert connection.next_event() == event
    assert connection.next_event() is None


@pytest.mark.parametrize(("data", "event"), SMALL)
def test_byte_at_a_time(data: bytes, event: Event) -> None:
    connection = Connection()
    for i in range(len(data) - 1):
        connection.feed(data[i : i + 1])
        assert connection.next_event() is None
    connection.feed(data[-1:])
    assert connection.next_event() == event


@pytest.mark.parametrize("size", [1, 2, 7, 4096, 1 << 20])
def test_all_together(size: int) -> None:
    data = b"".join(frame for frame, _ in FRAMES)
    connection = Connection()
    events: list[Event] = []
    for i in range(0, len(data), size):
        connection.feed(data[i : i + size])
        events.extend(connection)
    assert events == [event for _, event in FRAMES]


def test_trailing_data_waits() -> None:
    connection = Connection()
    connection.feed(FRAMES[0][0] + FRAMES[1][0][:5])
    assert list(connection) == [FRAMES[0][1]]
    connection.feed(FRAMES[1][0][5:])
    assert list(connection) == [FRAMES[1][1]]


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


BAD = {
    "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
    "nil": b"\xc0",
    "a map": pack({"method": "chat"}),
    "an empty array": pack([]),
    "a string first": pack(["chat", {}]),
    "true for 1": pack([True, 1, None, {}]),
    "false for 0": pack([False, 1, "chat", [{}]]),
    "a float for 0": pack([0.0, 1, "chat", [{}]]),
    "kind 3": pack([3, 1, "chat", [{}]]),
    "kind -1": pack([-1, 1, "chat", [{}]]),
    "a short request": pack([0, 1, "chat"]),
    "a long request": pack([0, 1, "chat", [{}], 1]),
    "a short response": pack([1, 1, None]),
    "a long notification": pack([2, "text", [{}], 1]),
    "a negative id": pack([0, -1, "chat", [{}]]),
    "an id of 33 bits": pack([0, 1 << 32, "chat", [{}]]),
    "an id that is a string": pack([0, "1", "chat", [{}]]),
    "an id that is true": pack([0, True, "chat", [{}]]),
    "a response to nil": pack([1, None, None, {}]),
    "a method that is bytes": pack([0, 1, b"chat", [{}]]),
    "a method that is nil": pack([2, None, [{}]]),
    "params that are a map": pack([0, 1, "chat", {}]),
    "two params": pack([0, 1, "chat", [{}, {}]]),
    "a param that is no map": pack([0, 1, "chat", ["hello"]]),
    "an integer key": pack([0, 1, "chat", [{1: 2}]]),
    "a nil key": pack([0, 1, "chat", [{None: 2}]]),
    "an array as key": bytes.fromhex("93 02 a1 78 91 81 90 01"),
    "a string of Latin-1": bytes.fromhex("93 02 a1 78 91 81 a1 61 a1 e9"),
    "half a code point": bytes.fromhex("93 02 a1 78 91 81 a1 61 a2 e282"),
    "a surrogate": bytes.fromhex("93 02 a1 78 91 81 a1 61 a3 eda080"),
    "an overlong slash": bytes.fromhex("93 02 a1 78 91 81 a1 61 a2 c0af"),
    "the byte that means nothing": bytes.fromhex("93 02 a1 78 91 c1"),
    "an extension type": pack([2, "x", [{"t": msgpack.ExtType(5, b"12345")}]]),
    "a time stamp": pack([2, "x", [{"t": msgpack.Timestamp(1, 2)}]]),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_bad_frame_poisons(data: bytes, step: int) -> None:
    connection = Connection()
    good, event = FRAMES[0]
    connection.feed(good)
    assert connection.next_event() == event
    with pytest.raises(LuceError) as first:  # noqa: PT012
        for i in range(0, len(data), step):
            connection.feed(data[i : i + step])
            connection.next_event()
    assert first.value.name == "bad_frame"
    connection.feed(good)
    with pytest.raises(LuceError) as second:
        connection.next_event()
    assert second.value is first.value


TOO_LARGE = {
    "a string of 4 GiB": (bytes.fromhex("93 02 db ffffffff"), "frame_bytes"),
    "bytes of 4 GiB": (bytes.fromhex("93 02 a1 78 91 81 a1 61 c6 ffffffff"), "frame_bytes"),
    "an array of 4 Gi items": (bytes.fromhex("93 02 a1 78 91 81 a1 61 dd ffffffff"), "items"),
    "a map of 4 Gi items": (bytes.fromhex("93 02 a1 78 91 df ffffffff"), "items"),
    "10 000 arrays in each other": (b"\x91" * 10_000, "nesting"),
    "10 000 maps in each other": (b"\x93\x02\xa1x\x91" + b"\x81\xa1a" * 10_000, "nesting"),
    "10 000 arrays of 65535": (b"\xdc\xff\xff" * 10_000, "items"),
    "17 MiB": (b"\x93\x02\xa1x\x91\xdc\xff\xff" + (b"\xda\xff\xff" + b"a" * 65535) * 300, "frame_bytes"),
}


@pytest.mark.parametrize(("data", "limit"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_too_large(data: bytes, limit: str) -> None:
    connection = Connection()
    connection.feed(data)
    with pytest.raises(LuceError) as raised:
        connection.next_event()
    assert raised.value.name == "too_large"
    assert raised.value.data["limit"] == limit


def test_limits_are_exact() -> None:
    frame = notification("x", {"a": [[[b"x" * 1000]]]})  # 6 levels: array, params, map, and three more
    n_items = 3 + 1 + 2 + 1 + 1 + 1
    exact = Limits(frame_bytes=len(frame), nesting=6, items=n_items)
    connection = Connection(exact)
    connection.feed(frame * 3)
    assert len(list(connection)) == 3
    for limits in (
        Limits(len(frame) - 1, 6, n_items),
        Limits(len(frame), 5, n_items),
        Limits(len(frame), 6, n_items - 1),
    ):
        connection = Connection(limits)
        connection.feed(frame)
        with pytest.raises(LuceError) as raised:
            connection.next_event()
        assert raised.value.name == "too_large"


def test_small_frames_may_come_in_one_large_piece() -> None:
    connection = Connection(Limits(frame_bytes=64))
    connection.feed(FRAMES[0][0] * 1000)
    assert len(list(connection)) == 1000


@pytest.mark.parametrize("connection", [Connection(FROM_DAEMON), TrustedConnection()])
def test_integer_keys_between_our_own(connection: Connection | TrustedConnection) -> None:
    connection.feed(notification("Generate", {"logit_bias": {5: -1.5}}))
    assert [*connection] == [Notification("Generate", {"logit_bias": {5: -1.5}})]


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_our_own_frames_may_come_in_any_pieces(step: int) -> None:
    connection, events = TrustedConnection(), list[Event]()
    data = b"".join(frame for frame, _ in FRAMES)
    for i in range(0, len(data), step):
        connection.feed(data[i : i + step])
        events += connection
    assert events == [event for _, event in FRAMES]


@pytest.mark.parametrize("data", [b"nonsense", b"\xc1", b"\x93\x02\xa1\xff\x91\x80", b"\x93\x02\xa1x\x91\x81\x90\x01"])
def test_one_of_our_own_that_has_gone_mad(data: bytes) -> None:
    connection = TrustedConnection()
    connection.feed(data)
    with pytest.raises(LuceError) as raised:
        list(connection)
    assert raised.value.name == "bad_frame"


@pytest.mark.parametrize("value", [object(), 1 << 64, "\ud800", {1, 2}])
def test_what_cannot_be_sent(value: object) -> None:
    with pytest.raises(LuceError) as raised:
        request(1, "chat", {"x": value})
    assert raised.value.name == "bad_parameter"


def drain(data: bytes, step: int) -> tuple[list[Event], str]:
    connection, events = Connection(), []
    try:
        for i in range(0, len(data), step):
            connection.feed(data[i : i + step])
            for event in connection:
                events.append(event)
    except LuceError as error:
        return events, error.name
    return events, ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4), st.integers(1, 64))
def test_round_trip(params: list[dict[str, Any]], step: int) -> None:
    data = b"".join(notification("x", p) for p in params)
    assert drain(data, step) == ([Notification("x", p) for p in params], "")
