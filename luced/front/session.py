"""One connection: its requests run at once, each in a cancel scope of its own, and leave in any order."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

import trio

from luce import wire
from luce.errors import LuceError
from luce.messages import BY_NAME, check
from luced.errors import EngineError, ProtocolError, RequestError
from luced.front import methods
from luced.front.call import Call
from luced.front.listener import Peer

if TYPE_CHECKING:
    from luced.front.daemon import Daemon

AT_ONCE = ("hello", "cancel")  # done before the next frame is looked at
OUTBOX_FRAMES = 32  # that wait to be sent; then the request that has more to say waits too
STALLED_S = 600.0  # a client that reads nothing for so long is gone
READ_BYTES = 1 << 16

log = logging.getLogger("luced.session")


class Session:
    MAX_CALLS = 64  # at once

    def __init__(self, daemon: Daemon, stream: trio.abc.Stream, peer: Peer, number: int) -> None:
        self.daemon = daemon
        self.number = number  # since the daemon's start
        self.peer = peer
        self.client = ""
        self.tenant = str(peer.uid)
        self.greeted = False
        self.refusal: RequestError | None = None  # what hello answers
        self.calls: dict[int, Call] = {}
        self._stream = stream
        self._outbox, self._outgoing = trio.open_memory_channel[bytes](OUTBOX_FRAMES)
        self._reading = trio.CancelScope()
        self._ending: EngineError | None = None

    async def run(self) -> None:
        """Until the client leaves, breaks the protocol, or the daemon shuts down. Its requests end with it."""
        async with self._stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._write, nursery.cancel_scope)
            async with self._outbox:
                async with trio.open_nursery() as calls:
                    last_words = None
                    with self._reading:
                        last_words = await self._read(calls)
                    if self._ending is None:
                        calls.cancel_scope.cancel()
                if last_words is not None:
                    await self.send(last_words)

    def end(self, error: EngineError) -> None:
        """Every running request gets `error`, then the connection closes."""
        self._ending = error
        for call in self.calls.values():
            call.scope.cancel()
        self._reading.cancel()

    async def send(self, frame: bytes) -> None:
        await self._outbox.send(frame)

    async def _write(self, session: trio.CancelScope) -> None:
        try:
            async for frame in self._outgoing:
                with trio.fail_after(STALLED_S):
                    await self._stream.send_all(frame)
        except (trio.BrokenResourceError, trio.TooSlowError):
            session.cancel()

    async def _read(self, calls: trio.Nursery) -> bytes | None:
        """Starts requests as they come. Returns when there can be no more, with a last frame for a peer that erred:
        the response to a request 0, for there may be none that it answers."""
        connection = wire.Connection()
        while True:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            connection.feed(data)
            try:
                for event in connection:
                    await self._accept(event, calls)
            except LuceError as error:
                log.info("connection %d: broke the protocol (%s)", self.number, error.name)
                return wire.response(0, error.to_wire(), None)

    async def _accept(self, event: wire.Event, calls: trio.Nursery) -> None:
        if not isinstance(event, wire.Request):
            raise ProtocolError("bad_frame", f"a client sends requests, not {type(event).__name__.lower()}s")
        if event.id in self.calls:
            raise ProtocolError("bad_frame", f"request {event.id} is still running")
        call = self.calls[event.id] = Call(self, event.id, event.method, event.params)
        is_full = len(self.calls) > self.MAX_CALLS
        if event.method in AT_ONCE or not self.greeted or is_full:
            await self._answer(call)
        else:
            calls.start_soon(self._answer, call)

    async def _answer(self, call: Call) -> None:
        result: dict[str, Any] | None = None
        error: LuceError | None = None
        try:
            with call.scope:
                result = await self._call(call)
            if call.scope.cancelled_caught:
                error = self._ending or RequestError("cancelled", "the request was cancelled")
        except LuceError as refusal:
            error = refusal
        except Exception as bug:
            log.error("%s failed\n%s", call.method, describe_bug(bug))
            error = LuceError("internal", f"{call.method} failed with {type(bug).__name__}")
        call.has_ended = True
        try:
            await self.send(wire.response(call.id, error.to_wire() if error else None, result))
        finally:
            del self.calls[call.id]
        if error is not None and (error.code.actor == "peer" or not self.greeted):
            self._reading.cancel()

    async def _call(self, call: Call) -> dict[str, Any]:
        if not self.greeted and call.method != "hello":
            raise ProtocolError("hello_first", f"{call.method} came before hello")
        if call.method not in BY_NAME:
            raise RequestError("unknown_method", f"there is no method {call.method[:64]!r}")
        if len(self.calls) > self.MAX_CALLS and call.method != "cancel":
            raise RequestError(
                "busy", f"{self.MAX_CALLS} requests are running on this connection", limit=self.MAX_CALLS
            )
        call.params = check(BY_NAME[call.method], call.params)
        return await methods.HANDLERS[call.method](call)


def describe_bug(bug: BaseException) -> str:
    """Its type and place, for the log. Not its message, which may quote a prompt."""
    inner = [describe_bug(e) for e in bug.exceptions] if isinstance(bug, BaseExceptionGroup) else []
    return "".join([*traceback.format_tb(bug.__traceback__), type(bug).__name__, *inner])
