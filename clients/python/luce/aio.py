"""The client for trio.

    async with AsyncClient() as client:
        async for piece in client.chat("Why is the sky blue?"):
            print(piece, end="", flush=True)

Any number of tasks may use one client at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import trio

from . import calls
from .aio_streams import AsyncStream, AsyncSubscription
from .calls import Ask, Call, Calls, Embedding, Messages, Received, Sampling
from .errors import LuceError
from .paths import find_socket
from .results import Embeddings, Hello, Loaded, Model, Prompt, Status, Tokens

T = TypeVar("T")
RECEIVE_BYTES = 1 << 16
RETRY_S = 0.02  # to connect
CANCEL_S = 1.0  # for sending a cancel while being cancelled


class AsyncClient:
    """A connection to the daemon, open within `async with`. Errors as in luce.Client; for time limits use trio's."""

    hello: Hello

    def __init__(self, path: str | os.PathLike[str] | None = None, *, tenant: str = "", name: str = "luce") -> None:
        self.path = find_socket() if path is None else Path(path)
        self._hello = calls.hello(tenant, name)
        self._calls = Calls()
        self._socket = trio.socket.socket(trio.socket.AF_UNIX)
        self._sending = trio.Lock()
        self._is_receiving = False
        self._received = trio.Event()

    async def __aenter__(self) -> Self:
        try:
            await self._connect()
        except OSError as error:
            self._socket.close()
            raise calls.cannot_connect(self.path, error) from None
        try:
            self.hello = await self._ask(self._hello)
        except BaseException:
            self.close()
            raise
        self._calls.frame_bytes = self.hello.limits.frame_bytes
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def chat(
        self, messages: Messages, *, model: str = "", system: str | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncStream:
        """The model's answer to a conversation; a string is a question of the user."""
        return AsyncStream(self, calls.chat(messages, model, system, sampling))

    def complete(self, prompt: str | Sequence[int], *, model: str = "", **sampling: Unpack[Sampling]) -> AsyncStream:
        """What follows a text or token ids."""
        return AsyncStream(self, calls.complete(prompt, model, sampling))

    def infill(
        self,
        prefix: str,
        suffix: str = "",
        *,
        extra: Mapping[str, str] | None = None,
        filename: str = "",
        model: str = "",
        **sampling: Unpack[Sampling],
    ) -> AsyncStream:
        """What belongs between two texts; `extra` maps names of other files to their text."""
        return AsyncStream(self, calls.infill(prefix, suffix, extra or {}, filename, model, sampling))

    async def embed(
        self, inputs: Sequence[str | Sequence[int]], *, model: str = "", **options: Unpack[Embedding]
    ) -> Embeddings:
        """A vector for each text or list of token ids."""
        return await self._ask(calls.embed(inputs, model, options))

    async def tokenize(
        self, text: str, *, model: str = "", special: bool = False, bos: bool = False, pieces: bool = False
    ) -> Tokens:
        return await self._ask(calls.tokenize(text, model, special=special, bos=bos, pieces=pieces))

    async def detokenize(self, tokens: Sequence[int], *, model: str = "", special: bool = True) -> str:
        return await self._ask(calls.detokenize(tokens, model, special=special))

    async def template(self, messages: Messages, *, model: str = "", system: str | None = None) -> Prompt:
        return await self._ask(calls.template(messages, model, system))

    async def models(self) -> tuple[Model, ...]:
        return await self._ask(calls.models())

    async def load(
        self,
        model: str = "",
        *,
        n_ctx: int | None = None,
        kv_type: str | None = None,
        keep_alive: str | float | None = None,
    ) -> Loaded:
        """Bring a model into memory, or change how long it stays. For operators."""
        return await self._ask(calls.load(model, n_ctx, kv_type, keep_alive))

    async def unload(self, model: str = "", *, force: bool = False) -> bool:
        """Take a model out of memory; `force` ends the requests that use it. False: it was not there. For operators."""
        return await self._ask(calls.unload(model, force=force))

    async def status(self) -> Status:
        return await self._ask(calls.status())

    def subscribe(self, *topics: str) -> AsyncSubscription:
        """What happens within its `async with`, of these topics (messages.TOPICS) or of all."""
        return AsyncSubscription(self, calls.subscribe(topics))

    async def cancel(self, request_id: int) -> bool:
        """End a request of this connection. False: it had ended already."""
        return await self._ask(calls.cancel(request_id))

    async def api(self) -> dict[str, Any]:
        """The daemon's protocol as data."""
        return await self._ask(calls.api())

    def close(self) -> None:
        """Close the connection; the daemon cancels what is still open on it."""
        self._calls.lose(LuceError("connection_lost", "the client closed the connection"))
        self._socket.close()

    async def _connect(self) -> None:
        """Without trio's own connect, which takes a Unix socket for connected when the daemon's backlog is full."""
        with socket.fromfd(self._socket.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as plain:
            plain.setblocking(False)
            while True:
                try:
                    return plain.connect(os.fspath(self.path))
                except BlockingIOError:
                    await trio.sleep(RETRY_S)

    async def _ask(self, ask: Ask[T]) -> T:
        call = await self._start(ask)
        try:
            while not call.has_ended:
                await self._receive()
        finally:
            await self._cancel(call)
        return call.outcome()

    async def _start(self, ask: Ask[T]) -> Call[T]:
        async with self._sending:
            call, data = self._calls.start(ask)
            try:
                await self._send(data)
            except BaseException:
                self._calls.cancel(call)
                raise
        return call

    async def _cancel(self, call: Call[Any]) -> None:
        if not call.has_ended:
            with trio.CancelScope(deadline=trio.current_time() + CANCEL_S, shield=True):
                async with self._sending:
                    await self._send(self._calls.cancel(call))

    async def _next(self, call: Call[Any]) -> Received | None:
        """The call's next event, None after its last."""
        await trio.lowlevel.checkpoint()
        while not call.events and not call.has_ended:
            await self._receive()
        if call.events:
            return call.events.popleft()
        call.outcome()
        return None

    async def _send(self, data: bytes) -> None:
        n_sent = 0
        try:
            while n_sent < len(data):
                n_sent += await self._socket.send(data[n_sent:])
        except (OSError, trio.ClosedResourceError) as error:
            self._calls.lose(LuceError("connection_lost", "the daemon is gone"))
            raise LuceError("connection_lost", "the daemon is gone") from error
        except BaseException:
            if n_sent:  # half a frame has gone: nothing can follow it
                self.close()
            raise

    async def _receive(self) -> None:
        """Wait until something has come. One task reads for all; when it leaves, another takes its place."""
        if self._is_receiving:
            await self._received.wait()
            return
        self._is_receiving = True
        try:
            try:
                data = await self._socket.recv(RECEIVE_BYTES)
            except (OSError, trio.ClosedResourceError):
                data = b""
            self._calls.feed(data)
        finally:
            self._is_receiving = False
            self._received.set()
            self._received = trio.Event()
