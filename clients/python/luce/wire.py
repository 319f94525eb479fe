"""MessagePack-RPC framing without I/O: bytes in, events out; messages in, bytes out.

    connection = Connection()
    connection.feed(data)
    for event in connection:
        ...

A frame is scanned before it is unpacked: msgpack would first reserve memory for every length that a header claims,
and has no limit on nesting below its own. The scan goes on where it stopped, so a frame may come in any pieces.
Between our own processes nothing claims what is not so, and every token passes there: TrustedConnection does not scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgpack

from .errors import LuceError
from .messages import MAX_FRAME_BYTES, MAX_ITEMS, MAX_NESTING

MAX_ID = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Request:
    id: int
    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Response:
    """`error` is None where the request succeeded."""

    id: int
    error: Any
    result: Any


@dataclass(frozen=True, slots=True)
class Notification:
    method: str
    params: dict[str, Any]


Event = Request | Response | Notification


@dataclass(frozen=True)
class Limits:
    """What a frame may be. Maps have string keys: chosen integers can be made to collide in a hash table."""

    frame_bytes: int = MAX_FRAME_BYTES
    nesting: int = MAX_NESTING
    items: int = MAX_ITEMS
    integer_keys: bool = False


OWN_BYTES = 1 << 30  # of a frame from a process of our own
FROM_DAEMON = Limits(frame_bytes=OWN_BYTES, items=1 << 26, integer_keys=True)  # what a client takes


def request(request_id: int, method: str, params: dict[str, Any]) -> bytes:
    return _pack([0, request_id, method, [params]])


def response(request_id: int, error: dict[str, Any] | None, result: dict[str, Any] | None) -> bytes:
    return _pack([1, request_id, error, result], _QUOTED)


def notification(method: str, params: dict[str, Any]) -> bytes:
    return _pack([2, method, [params]], _QUOTED)


# What an answer quotes, as the name of a file, may be no UTF-8: that must not cost the answer. A request is sent as it
# was meant, or not at all.
_EXACT, _QUOTED = "strict", "backslashreplace"


def _pack(message: list[Any], on_surrogate: str = _EXACT) -> bytes:
    try:
        packed: bytes = msgpack.packb(message, unicode_errors=on_surrogate)
    except (TypeError, ValueError, OverflowError) as error:
        raise LuceError("bad_parameter", f"cannot be sent: {error}") from None
    return packed


class Connection:
    """One direction of a byte stream. The first error is final: it is raised again whatever follows."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._error: LuceError | None = None
        self.frame_bytes = 0  # of the last event
        self._start_frame()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def next_event(self) -> Event | None:
        """The next message, or None: feed more. LuceError (bad_frame, too_large): the peer broke the protocol."""
        if self._error is not None:
            raise self._error
        try:
            if not self._scan():
                return None
            self.frame_bytes = self._position
            frame = self._buffer[: self._position]
            del self._buffer[: self._position]
            self._start_frame()
            return _event(self._unpack(frame))
        except LuceError as error:
            self._error = error
            self._buffer.clear()
            raise

    @property
    def n_buffered(self) -> int:
        """Bytes of a frame that is not all there yet."""
        return len(self._buffer)

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next_event()) is not None:
            yield event

    def _start_frame(self) -> None:
        self._position = 0  # of the next item to scan
        self._left = 1  # items to come in the innermost open container
        self._open: list[int] = []  # the same for the containers around it
        self._items = 0

    def _scan(self) -> bool:
        """Move to the end of the frame. False: it is not all there yet."""
        buffer, size = self._buffer, len(self._buffer)
        position, left = self._position, self._left
        while True:
            while not left:
                if not self._open:
                    self._position, self._left = position, 0
                    self._check_size(position)
                    return position <= size
                left = self._open.pop()
            if position >= size:
                break
            byte = buffer[position]
            if step := _FIXED_BYTES[byte]:
                position += step
                left -= 1
                continue
            kind, n_length = _VARIABLE[byte]
            if n_length:
                if position + n_length >= size:
                    break
                n = int.from_bytes(buffer[position + 1 : position + 1 + n_length], "big")
            else:
                n = byte & 15
            position += 1 + n_length
            left -= 1
            if kind == _BYTES:
                position += n
                self._check_size(position)
            elif kind == _REFUSED:
                raise LuceError("bad_frame", f"byte 0x{byte:02x} begins an extension type or nothing; neither is used")
            else:
                self._enter(n * kind, left)
                left = n * kind
        self._position, self._left = position, left
        self._check_size(max(position, size))
        return False

    def _enter(self, n_items: int, left: int) -> None:
        self._open.append(left)
        self._items += n_items
        if len(self._open) > self._limits.nesting:
            raise _too_large("nesting", self._limits.nesting, "levels of nesting")
        if self._items > self._limits.items:
            raise _too_large("items", self._limits.items, "items")

    def _check_size(self, n_bytes: int) -> None:
        if n_bytes > self._limits.frame_bytes:
            raise _too_large("frame_bytes", self._limits.frame_bytes, "bytes")

    def _unpack(self, frame: bytearray) -> Any:
        try:
            return msgpack.unpackb(frame, strict_map_key=not self._limits.integer_keys)
        except UnicodeDecodeError as error:
            raise LuceError("bad_frame", f"a string is not UTF-8: {error.reason}") from None
        except (ValueError, TypeError):
            raise LuceError("bad_frame", "a map has a key that is not a string") from None


class TrustedConnection:
    """A Connection from a process of our own. LuceError (bad_frame): it is of another version, or has gone mad."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(strict_map_key=False, read_size=1 << 16, max_buffer_size=OWN_BYTES)

    def feed(self, data: bytes) -> None:
        self._unpacker.feed(data)

    def __iter__(self) -> Iterator[Event]:
        try:
            for frame in self._unpacker:
                yield _event(frame)
        except (ValueError, TypeError):
            raise LuceError("bad_frame", "what came is no MessagePack") from None


def _too_large(limit: str, value: int, unit: str) -> LuceError:
    return LuceError("too_large", f"a frame has more than {value} {unit}", {"limit": limit, "value": value})


def _event(frame: Any) -> Event:
    if type(frame) is not list or not frame or type(frame[0]) is not int:
        raise LuceError("bad_frame", "a frame must be an array that begins with 0, 1 or 2")
    kind, n = frame[0], len(frame)
    if kind == 2 and n == 3:
        return Notification(_method(frame[1]), _params(frame[2]))
    if kind == 0 and n == 4:
        return Request(_id(frame[1]), _method(frame[2]), _params(frame[3]))
    if kind == 1 and n == 4:
        return Response(_id(frame[1]), frame[2], frame[3])
    raise LuceError("bad_frame", f"an array of {n} that begins with {kind} is no request, response or notification")


def _id(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise LuceError("bad_frame", f"an id must be an integer of 32 bits, not {_short(value)}")
    return value


def _method(value: Any) -> str:
    if type(value) is not str:
        raise LuceError("bad_frame", f"a method must be a string, not {_short(value)}")
    return value


def _params(value: Any) -> dict[str, Any]:
    if type(value) is list:
        if not value:  # what MessagePack-RPC libraries send for a call without arguments
            return {}
        if len(value) == 1 and type(value[0]) is dict:
            return value[0]
    raise LuceError("bad_frame", f"params must be an array of one map, not {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bytes)) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."


# What a first byte says, from the MessagePack specification. An array has n items, a map n keys and n values.
_REFUSED, _ARRAY, _MAP, _BYTES = 0, 1, 2, 3
_VARIABLE: dict[int, tuple[int, int]] = {  # first byte: (kind, bytes of its length)
    **dict.fromkeys(range(0x80, 0x90), (_MAP, 0)),
    **dict.fromkeys(range(0x90, 0xA0), (_ARRAY, 0)),
    **dict.fromkeys((0xC1, 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8), (_REFUSED, 0)),
    0xC4: (_BYTES, 1), 0xC5: (_BYTES, 2), 0xC6: (_BYTES, 4),
    0xD9: (_BYTES, 1), 0xDA: (_BYTES, 2), 0xDB: (_BYTES, 4),
    0xDC: (_ARRAY, 2), 0xDD: (_ARRAY, 4), 0xDE: (_MAP, 2), 0xDF: (_MAP, 4),
}  # fmt: skip


def _fixed_bytes(byte: int) -> int:
    """Bytes of an item whose first byte alone tells them; 0: more must be read."""
    if byte < 0x80 or byte >= 0xE0 or byte in (0xC0, 0xC2, 0xC3):
        return 1
    if 0xA0 <= byte < 0xC0:
        return 1 + (byte & 31)
    return {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}.get(byte, 0)


_FIXED_BYTES = tuple(_fixed_bytes(byte) for byte in range(256))
