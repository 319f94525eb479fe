"""What happens, told to those who subscribed to it. Nobody is held up: who does not read is dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from luced.errors import RequestError

if TYPE_CHECKING:
    from luced.front.call import Call
    from luced.front.session import Session

MAX_UNREAD = 256  # events that one subscription may leave unread


@dataclass(frozen=True)
class Event:
    topic: str
    event: str
    at: float  # Unix time
    facts: dict[str, Any]


class Events:
    """`watch` is told of all that happens."""

    def __init__(self, watch: Callable[[Event], None]) -> None:
        self._watch = watch
        self._subscribers: dict[Call, tuple[Collection[str], trio.MemorySendChannel[Event]]] = {}

    def publish(self, topic: str, event: str, owner: Session | None = None, /, **facts: Any) -> None:
        """To all who subscribed to the topic; if it has an owner, to those who may see the owner's requests."""
        what = Event(topic, event, time.time(), facts)
        self._watch(what)
        for call, (topics, channel) in list(self._subscribers.items()):
            if topic in topics and (owner is None or call.session.may_see(owner)):
                try:
                    channel.send_nowait(what)
                except trio.WouldBlock:
                    del self._subscribers[call]
                    why = f"{MAX_UNREAD} events were not read: the subscription has ended"
                    call.end(RequestError("too_slow", why, limit="events", value=MAX_UNREAD))

    @contextmanager
    def subscribed(self, call: Call, topics: Collection[str]) -> Iterator[trio.MemoryReceiveChannel[Event]]:
        """The events of these topics while the block runs."""
        send, receive = trio.open_memory_channel[Event](MAX_UNREAD)
        self._subscribers[call] = topics, send
        try:
            yield receive
        finally:
            self._subscribers.pop(call, None)
