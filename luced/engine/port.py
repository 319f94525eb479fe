"""The engine's end of the link to the front: a socket that never holds the loop up, except to wait for work."""

from __future__ import annotations

import select
import socket

from luce import wire
from luced.link import Message, from_wire, to_wire

MAX_BACKLOG_BYTES = 64 << 20  # unsent; a front that reads nothing more then holds the engine up
READ_BYTES = 1 << 20


class Port:
    """Messages in, messages out."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._socket.setblocking(False)
        self._connection = wire.TrustedConnection()
        self._backlog = bytearray()

    def send(self, messages: list[Message]) -> None:
        """Sends what can be sent at once; the rest goes out later."""
        for message in messages:
            self._backlog += wire.notification(*to_wire(message))
        self._flush()
        while len(self._backlog) > MAX_BACKLOG_BYTES:
            select.select([], [self._socket], [])
            self._flush()

    def receive(self, wait_s: float | None) -> list[Message] | None:
        """The messages that have come, waiting for one if need be (None: for ever). None: the front closed the link."""
        messages: list[Message] = []
        while not messages:
            readable, writable, _ = select.select([self._socket], [self._socket] if self._backlog else [], [], wait_s)
            if writable:
                self._flush()
            if readable:
                data = self._read()
                if not data:
                    return None
                self._connection.feed(data)
                for event in self._connection:
                    assert isinstance(event, wire.Notification), event
                    messages.append(from_wire(event.method, event.params))
            elif wait_s is not None and not (writable and wait_s):
                break
        return messages

    def _read(self) -> bytes:
        try:
            return self._socket.recv(READ_BYTES)
        except ConnectionError:
            return b""

    def _flush(self) -> None:
        try:
            while self._backlog:
                del self._backlog[: self._socket.send(self._backlog)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._backlog.clear()  # nobody is there to read it; the next receive says so
