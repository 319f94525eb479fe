"""Frames in any pieces: the same events or the same error, and never another value than msgpack itself reads."""

from __future__ import annotations

from typing import Any

import msgpack

from luce.errors import LuceError
from luce.wire import Connection, Event, Limits, Notification, Request

LIMITS = Limits(frame_bytes=1 << 12, nesting=16, items=1 << 8)


def fuzz_wire(data: bytes) -> None:
    """The first byte is the size of the pieces; the others come from the peer."""
    step, stream = max(1, data[0] if data else 0), data[1:]
    events, error = drain(stream, step)
    assert error in ("", "bad_frame", "too_large")
    assert repr(drain(stream, 1)) == repr(drain(stream, max(1, len(stream)))) == repr((events, error))
    frames = msgpack.Unpacker(strict_map_key=False, max_buffer_size=1 << 20)
    frames.feed(stream)
    for event, frame in zip(events, frames, strict=False):
        assert repr(frame) in (repr(form) for form in _forms(event))


def drain(data: bytes, step: int) -> tuple[list[Event], str]:
    """All events of `data`, and the name of the error that ends them."""
    connection = Connection(LIMITS)
    events: list[Event] = []
    try:
        for at in range(0, len(data), step):
            connection.feed(data[at : at + step])
            events.extend(connection)
    except LuceError as error:
        return events, error.name
    return events, ""


def _forms(event: Event) -> list[list[Any]]:
    """How an event may have been written."""
    if isinstance(event, Request):
        head: list[Any] = [0, event.id, event.method]
    elif isinstance(event, Notification):
        head = [2, event.method]
    else:
        return [[1, event.id, event.error, event.result]]
    return [[*head, [event.params]], *([] if event.params else [[*head, []]])]
