"""One run of the engine process: its start, its end of the link, its last words."""

from __future__ import annotations

import collections
import logging
import math
import os
from collections.abc import Callable

import trio

from luce import wire
from luce.errors import LuceError
from luced import link
from luced.front.child import Child
from luced.front.journal import entry

READ_BYTES = 1 << 16
LAST_LINES = 40  # of output, kept for the error and the report that tell of the engine's end
EXIT_S = 5.0  # from the end of the link to the end of the process: its last words may take a slow machine a while

log = logging.getLogger("luced.engine")


class EngineProcess:
    """A running engine. `send` never waits; `run` delivers what the engine says until it is gone."""

    def __init__(self, child: Child) -> None:
        self.pid = child.process.pid
        self.last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._child = child
        self._outbox, self._outgoing = trio.open_memory_channel[bytes](math.inf)

    def send(self, message: link.Message) -> None:
        name, fields = link.to_wire(message)
        try:
            self._outbox.send_nowait(wire.notification(name, fields))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            log.debug("not sent, the engine is gone: %s", name)

    async def run(self, receive: Callable[[link.Message], None]) -> int:
        """Calls `receive` with each message; returns the exit status (negative: the signal) once the engine is gone."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._read_output)
                await self._read(receive)
                self._outbox.close()
                nursery.cancel_scope.deadline = trio.current_time() + EXIT_S
                await self._child.wait()
        finally:
            status = await self._child.end()
        return status

    async def _read(self, receive: Callable[[link.Message], None]) -> None:
        connection, fd = wire.TrustedConnection(), self._child.stream.socket.fileno()
        try:
            while True:  # for every token: a stream would try to read before there is something
                await trio.lowlevel.wait_readable(fd)
                data = os.read(fd, READ_BYTES)
                if not data:
                    return
                connection.feed(data)
                for event in connection:
                    assert isinstance(event, wire.Notification)
                    receive(link.from_wire(event.method, event.params))
        except ConnectionError:
            pass  # it died with messages unread
        except (LuceError, KeyError, TypeError) as error:
            log.error(entry("the engine makes no sense and is ended", engine=self.pid, error=type(error).__name__))

    async def _write(self) -> None:
        try:
            async for frame in self._outgoing:
                await self._child.stream.send_all(frame)
        except trio.BrokenResourceError:
            self._outgoing.close()

    async def _read_output(self) -> None:
        rest = b""
        assert self._child.process.stdout is not None
        with self._child.process.stdout as pipe:
            output = trio.lowlevel.FdStream(os.dup(pipe.fileno()))
        async with output:
            async for data in output:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._keep(line)
        if rest:
            self._keep(rest)

    def _keep(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        self.last_lines.append(text)
        log.info("%s", text)
