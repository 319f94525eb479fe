"""A request that the engine works on: its messages in order, and no more of them than somebody reads."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import trio

from luced import link

if TYPE_CHECKING:
    from luced.front.supervisor import Supervisor

MAX_AHEAD = 256  # tokens that the engine is ahead of who reads; then it pauses until half of them are read


class EngineRequest:
    """`receive` gives its messages. `n_open`: choices that are not finished. `is_paused`: its reader is too slow."""

    def __init__(self, supervisor: Supervisor, generate: link.Generate) -> None:
        self.id = generate.id
        self.n_open = generate.n
        self.is_paused = False
        self._supervisor = supervisor
        self._messages: collections.deque[link.Message] = collections.deque()
        self._n_unread = 0  # tokens
        self._place: int | None = None  # in the queue, if it is news
        self._last_place = -1
        self._is_lost = False
        self._news = trio.Event()

    def deliver(self, message: link.Message) -> None:
        """Never waits."""
        self._messages.append(message)
        if isinstance(message, link.Tokens):
            self._n_unread += len(message.tokens)
            if self._n_unread >= MAX_AHEAD and not self.is_paused:
                self.is_paused = True
                self._supervisor.send(link.Pause(self.id, self._supervisor.pause_s))
        self._news.set()

    def move(self, n_ahead: int) -> None:
        """So many requests will start before it."""
        if n_ahead != self._last_place:
            self._place = self._last_place = n_ahead
            self._news.set()

    def lose(self) -> None:
        """The engine is gone."""
        self._is_lost = True
        self._news.set()

    async def receive(self) -> link.Message | int:
        """The next message, or how many requests are ahead of it now. EngineError: the engine died and took the
        request with it."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._messages:
                return self._take()
            if self._place is not None:
                place, self._place = self._place, None
                return place
            if self._is_lost:
                raise self._supervisor.failure()
            self._news = trio.Event()
            await self._news.wait()

    def truncate(self, choice: int, n_tokens: int) -> None:
        self._supervisor.send(link.Truncate(self.id, choice, n_tokens))

    def _take(self) -> link.Message:
        message = self._messages.popleft()
        if isinstance(message, link.Tokens):
            self._n_unread -= len(message.tokens)
            if self.is_paused and self._n_unread <= MAX_AHEAD // 2:
                self.is_paused = False
                self._supervisor.send(link.Resume(self.id))
        return message
