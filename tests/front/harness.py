"""A daemon in this process with the fake engine, and a client that knows nothing but MessagePack."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import trio

from luced.config import Config
from luced.front import listener
from luced.front.daemon import Daemon
from tests.tinygguf import tiny_chat_model

FAKE_ENGINE = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))
MODELS = ("tiny", "slow", "bad", "deadly")
HANG_S = 300  # on no machine does a test take so long
Map = dict[str, Any]


class Client:
    """A raw connection. What has come for each request is kept until it is asked for."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.notes: dict[int, list[tuple[str, Map]]] = {}
        self._unpacker = msgpack.Unpacker()
        self._responses: dict[int, tuple[Map | None, Map | None]] = {}
        self._n = 0

    async def send(self, method: str, **params: Any) -> int:
        """Sends a request; returns its id."""
        self._n += 1
        await self.stream.send_all(msgpack.packb([0, self._n, method, [params]]))
        return self._n

    async def call(self, method: str, **params: Any) -> Map:
        """The result of a request that must succeed."""
        error, result = await self.response(await self.send(method, **params))
        assert error is None, error
        assert result is not None
        return result

    async def refused(self, method: str, **params: Any) -> Map:
        """The error of a request that must fail."""
        error, _ = await self.response(await self.send(method, **params))
        assert error is not None
        return error

    async def response(self, request: int) -> tuple[Map | None, Map | None]:
        """(error, result) of the request."""
        while request not in self._responses:
            assert await self._receive(), "the connection was closed"
        return self._responses.pop(request)

    async def note(self, request: int, name: str) -> Map:
        """The next notification of that name of the request; earlier ones of another name are dropped."""
        while True:
            notes = self.notes.setdefault(request, [])
            while notes:
                found, fields = notes.pop(0)
                if found == name:
                    return fields
            assert request not in self._responses, self._responses[request]
            assert await self._receive(), "the connection was closed"

    async def closed(self) -> bool:
        """Waits until the daemon closes the connection."""
        while await self._receive():
            pass
        return True

    async def _receive(self) -> bool:
        for message in self._unpacker:
            if message[0] == 1:
                self._responses[message[1]] = (message[2], message[3])
            else:
                self.notes.setdefault(message[2][0]["id"], []).append((message[1], message[2][0]))
            return True
        try:
            data = await self.stream.receive_some(1 << 16)
        except trio.BrokenResourceError:
            return False
        self._unpacker.feed(data)
        return bool(data)

    def text(self, request: int) -> str:
        """All the text that has been streamed of a request with one answer."""
        return "".join(fields["text"] for name, fields in self.notes.get(request, []) if name == "text")


class House:
    """A running daemon."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.streams: list[trio.SocketStream] = []

    async def connect(self, greet: bool = True, tenant: str = "", to: listener.Listener | None = None) -> Client:
        self.streams.append(await trio.open_unix_socket(str((to or self.daemon.listener).path)))
        client = Client(self.streams[-1])
        if greet:
            await client.call("hello", client="test 1.0", tenant=tenant)
        return client

    def expire(self, request: int) -> None:
        """The deadline of the request with this id is now, how far it may be."""
        (call,) = [session.calls[request] for session in self.daemon.sessions if request in session.calls]
        call.scope.deadline = trio.current_time()


@asynccontextmanager
async def running(folder: Path, engine: tuple[str, ...] = FAKE_ENGINE, **settings: Any) -> AsyncIterator[House]:
    """A daemon with its socket and the models of MODELS in `folder`; it is shut down at the end."""
    model = tiny_chat_model(folder / "tiny.gguf")
    for name in MODELS[1:]:
        shutil.copy(model, folder / f"{name}.gguf")
    config = Config(folder / "run" / "luced.sock", (folder,), **{"default_model": "tiny", **settings})
    listening = listener.listen(config.socket)
    inference = listener.listen(config.inference_socket) if config.inference_socket else None
    daemon = Daemon(config, listening, engine, inference)
    house = House(daemon, folder)
    try:
        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(daemon.run)
                yield house
                daemon.stop()
    finally:
        listening.close()
        if inference:
            inference.close()
        for stream in house.streams:
            stream.socket.close()
