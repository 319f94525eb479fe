"""What the client for trio gives while a request runs: an answer as it grows, events as they happen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .calls import Ask, Call, StreamEvent
from .results import Answer, Event, Text

if TYPE_CHECKING:
    from .aio import AsyncClient


class AsyncStream:
    """An answer as it grows; the request is sent when it is first read.

    A loop that is cancelled cancels the request. To leave the loop before its end, use `async with` around it.
    """

    def __init__(self, client: AsyncClient, ask: Ask[Answer]) -> None:
        self._client = client
        self._ask = ask
        self._call: Call[Answer] | None = None

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def id(self) -> int:
        """Of the request, for `cancel`. RuntimeError: it has not been sent."""
        if self._call is None:
            raise RuntimeError("the request has not been sent")
        return self._call.id

    def __aiter__(self) -> AsyncIterator[str]:
        """The text of the first choice, in pieces."""
        return _Pieces(self)

    def events(self) -> AsyncIterator[StreamEvent]:
        """Text of all choices, and progress."""
        return _Events(self)

    async def read(self) -> Answer:
        """The answer, waiting for the end."""
        async for _ in self.events():
            pass
        return self.answer

    @property
    def answer(self) -> Answer:
        """The answer. RuntimeError: the stream has not been read to its end."""
        if self._call is None or not self._call.has_ended or self._call.events:
            raise RuntimeError("the stream has not been read to its end")
        return self._call.outcome()

    async def aclose(self) -> None:
        if self._call is not None:
            await self._client._cancel(self._call)

    async def _started(self) -> Call[Answer]:
        if self._call is None:
            self._call = await self._client._start(self._ask)
        return self._call

    async def _next(self) -> StreamEvent | None:
        try:
            event = await self._client._next(await self._started())
        except BaseException:
            await self.aclose()
            raise
        assert not isinstance(event, Event)
        return event


class AsyncSubscription(AsyncIterator[Event]):
    """Events as they happen, without end, within `async with`. LuceError: too_slow, if they were not read in time."""

    def __init__(self, client: AsyncClient, ask: Ask[None]) -> None:
        self._client = client
        self._ask = ask
        self._call: Call[None] | None = None

    async def __aenter__(self) -> Self:
        self._call = await self._client._start(self._ask)
        try:
            await self._client._next(self._call)  # the first event says that it holds
        except BaseException:
            await self._client._cancel(self._call)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._call is not None:
            await self._client._cancel(self._call)

    async def __anext__(self) -> Event:
        if self._call is None:
            raise RuntimeError("a subscription begins with `async with`")
        event = await self._client._next(self._call)
        assert isinstance(event, Event)
        return event


# Plain iterators, since trio warns of async generators that a `break` leaves unfinished.


class _Events(AsyncIterator[StreamEvent]):
    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream

    async def __anext__(self) -> StreamEvent:
        if (event := await self._stream._next()) is None:
            raise StopAsyncIteration
        return event


class _Pieces(AsyncIterator[str]):
    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream

    async def __anext__(self) -> str:
        while (event := await self._stream._next()) is not None:
            if isinstance(event, Text) and event.choice == 0 and event.text:
                return event.text
        raise StopAsyncIteration
