"""One connection: its requests run at once, each in a cancel scope of its own, and leave in any order."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

import trio

from luce import wire
from luce.errors import LuceError
from luce.fields import Method
from luce.messages import BY_NAME, ROLES, check
from luced.errors import EngineError, ProtocolError, RequestError
from luced.front import methods
from luced.front.call import Call
from luced.front.journal import describe_bug, entry
from luced.front.listener import Peer
from luced.front.outbox import Outbox

if TYPE_CHECKING:
    from luced.front.daemon import Daemon

AT_ONCE = ("hello", "cancel")  # done before the next frame is looked at
READ_BYTES = 1 << 16
BIG_BYTES = 1 << 16  # of a frame that counts towards the next
MAX_BYTES_OF_USER = 256 << 20  # of requests that are not answered yet, and of what has come of those to come

log = logging.getLogger("luced.session")


class Session:
    MAX_CALLS = 512  # at once

    def __init__(self, daemon: Daemon, stream: trio.SocketStream, peer: Peer, number: int, role: str) -> None:
        self.daemon = daemon
        self.number = number  # since the daemon's start
        self.peer = peer
        self.role = role
        self.methods = frozenset(m.name for m in BY_NAME.values() if ROLES.index(m.role) <= ROLES.index(role))
        self.client = ""
        self.tenant = str(peer.uid)
        self.greeted = False
        self.refusal: RequestError | None = None  # what hello answers
        self.calls: dict[int, Call] = {}
        self.text_turn = trio.Lock()  # one text at a time is worked on
        self._connection = wire.Connection()
        self._held_bytes = 0
        self._stream = stream
        self._outbox = Outbox(stream)
        self._reading = trio.CancelScope()
        self._ending: EngineError | None = None

    async def run(self) -> None:
        """Until the client leaves, breaks the protocol, or the daemon shuts down. Its requests end with it."""
        try:
            await self._run()
        finally:
            self._hold(-self._held_bytes)

    async def _run(self) -> None:
        async with self._stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._write, nursery.cancel_scope)
            with closing(self._outbox):
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
            call.end(error)
        self._reading.cancel()

    def may_see(self, other: Session) -> bool:
        """Its own requests: those of its tenant, or of its uid where it has not narrowed itself."""
        if self.role == "operator":
            return True
        return self.tenant == other.tenant or (self.tenant == str(self.peer.uid) == str(other.peer.uid))

    async def send(self, frame: bytes) -> None:
        """Waits while the client reads more slowly than we write."""
        await self._outbox.send(frame)

    @property
    def is_behind(self) -> bool:
        """The client reads more slowly than we write: what is sent now has to wait."""
        return self._outbox.is_behind

    def try_send(self, frame: bytes) -> bool:
        """False: it has to wait, and was not sent."""
        return self._outbox.try_send(frame)

    async def _write(self, session: trio.CancelScope) -> None:
        try:
            await self._outbox.run(self.daemon.config.stall_s)
        except trio.BrokenResourceError:
            session.cancel()
        except trio.TooSlowError:
            log.warning(entry("stalled", connection=self.number, uid=self.peer.uid))
            session.cancel()

    async def _read(self, calls: trio.Nursery) -> bytes | None:
        """Starts requests as they come. Returns when there can be no more, with a last frame for a peer that erred:
        the response to a request 0, for there may be none that it answers."""
        connection = self._connection
        while True:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            connection.feed(data)
            self._hold(len(data))
            try:
                for event in connection:
                    await self._accept(event, calls)
                if connection.n_buffered > BIG_BYTES and self._has_sent_more_than(2 * MAX_BYTES_OF_USER):
                    what = "what this user has sent takes too much memory"
                    raise ProtocolError("too_large", what, limit="bytes_of_user", value=MAX_BYTES_OF_USER)
            except LuceError as error:
                log.info(entry("broke the protocol", connection=self.number, error=error.name))
                return wire.response(0, error.to_wire(), None)

    async def _accept(self, event: wire.Event, calls: trio.Nursery) -> None:
        if not isinstance(event, wire.Request):
            raise ProtocolError("bad_frame", f"a client sends requests, not {type(event).__name__.lower()}s")
        if event.id in self.calls:
            raise ProtocolError("bad_frame", f"request {event.id} is still running")
        call = self.calls[event.id] = Call(self, event.id, event.method, event.params, self._connection.frame_bytes)
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
                error = call.error or _too_late(call)
        except LuceError as refusal:
            error = refusal
        except Exception as bug:
            log.error(entry(f"{call.method} failed", request=call.name, bug=describe_bug(bug)))
            error = LuceError("internal", f"{call.method} failed with {type(bug).__name__}")
        call.has_ended = True
        try:
            await self.send(wire.response(call.id, error.to_wire() if error else None, result))
        finally:
            del self.calls[call.id]
            self._hold(-call.n_bytes)
        if error is not None and (error.code.actor == "peer" or not self.greeted):
            self._reading.cancel()

    async def _call(self, call: Call) -> dict[str, Any]:
        method = self._method(call)
        call.params = check(method, call.params)
        call.limit(call.params.get("deadline_s"))
        if not method.computes:
            return await methods.HANDLERS[method.name](call)
        return await self._compute(call)

    def _method(self, call: Call) -> Method:
        """LuceError: it is not to be called, or not now."""
        if not self.greeted and call.method != "hello":
            raise ProtocolError("hello_first", f"{call.method} came before hello")
        method = BY_NAME.get(call.method)
        if method is None:
            raise RequestError("unknown_method", f"there is no method {call.method[:64]!r}")
        if method.name not in self.methods:
            who = self.daemon.who_may(method.role)
            raise RequestError("not_permitted", f"{method.name} is for {who}", role=self.role, needed=method.role)
        if call.n_bytes > BIG_BYTES and self._has_sent_more_than(MAX_BYTES_OF_USER):
            raise self._busy("bytes_of_user", MAX_BYTES_OF_USER, "bytes of requests of this user are not answered yet")
        if len(self.calls) > self.MAX_CALLS and method.name != "cancel":
            raise self._busy("requests", self.MAX_CALLS, "requests are running on this connection")
        return method

    def _busy(self, limit: str, value: int, what: str) -> RequestError:
        return RequestError(
            "busy", f"{value} {what}", limit=limit, value=value, retry_after_s=self.daemon.queue.retry_after_s()
        )

    def _hold(self, n_bytes: int) -> None:
        """So many bytes more of what this user has sent and is not answered."""
        self._held_bytes += n_bytes
        self.daemon.held_bytes[self.peer.uid] += n_bytes

    def _has_sent_more_than(self, n_bytes: int) -> bool:
        return self.daemon.held_bytes[self.peer.uid] > n_bytes

    async def _compute(self, call: Call) -> dict[str, Any]:
        """A method that may wait for a model and for its turn."""
        events, error = self.daemon.events, "internal"
        facts = {"request": call.id, "connection": self.number, "client": self.client, "method": call.method}
        self.daemon.queue.enter(call)
        events.publish("requests", "came", self, **facts)
        try:
            result = await methods.HANDLERS[call.method](call)
            error = ""
            for what in result.get("degraded", ()):
                events.publish("degradations", "request", self, **facts, model=call.model, what=what)
            return result
        except trio.Cancelled:
            error = call.error.name if call.error else "deadline" if call.is_late else "connection_lost"
            raise
        except LuceError as refusal:
            error = refusal.name
            raise
        finally:
            self.daemon.queue.leave(call)
            outcome = {"model": call.model, "error": error, "age_s": call.age_s, **call.done}
            events.publish("requests", "ended", self, **facts, **outcome)
            log.info(entry(f"{call.method} ended", request=call.name, uid=self.peer.uid, **outcome))


def _too_late(call: Call) -> RequestError:
    what = f"{call.method} was not done in {call.limit_s:g} s"
    return RequestError("deadline", what, deadline_s=call.limit_s, **call.done)
