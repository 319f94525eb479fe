"""The blocking client.

    with Client() as client:
        for piece in client.chat("Why is the sky blue?"):
            print(piece, end="", flush=True)

One connection may have several streams open; what comes for the others is kept while one is read. For one thread.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from . import calls
from .calls import Ask, Call, Calls, Embedding, Messages, Received, Sampling, StreamEvent
from .errors import LuceError
from .paths import find_socket
from .results import Answer, Embeddings, Event, Loaded, Model, Progress, Prompt, Status, Text, Tokens

T = TypeVar("T")
RECEIVE_BYTES = 1 << 16


class Client:
    """A connection to the daemon. `timeout`: longest silence in seconds that is borne while waiting. `name`: ours.

    LuceError: not_running, not_permitted, unsupported_level; and for every method, what the daemon says.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        tenant: str = "",
        timeout: float | None = None,
        name: str = "luce",
    ) -> None:
        self.path = find_socket() if path is None else Path(path)
        self._timeout = timeout
        self._calls = Calls()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(os.fspath(self.path))
        except OSError as error:
            self._socket.close()
            raise calls.cannot_connect(self.path, error) from None
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        try:
            self.hello = self._ask(calls.hello(tenant, name))
        except BaseException:
            self._socket.close()
            raise
        self._calls.frame_bytes = self.hello.limits.frame_bytes

    def chat(
        self, messages: Messages, *, model: str = "", system: str | None = None, **sampling: Unpack[Sampling]
    ) -> Stream:
        """The model's answer to a conversation; a string is a question of the user."""
        return Stream(self, self._start(calls.chat(messages, model, system, sampling)))

    def complete(self, prompt: str | Sequence[int], *, model: str = "", **sampling: Unpack[Sampling]) -> Stream:
        """What follows a text or token ids."""
        return Stream(self, self._start(calls.complete(prompt, model, sampling)))

    def infill(
        self,
        prefix: str,
        suffix: str = "",
        *,
        extra: Mapping[str, str] | None = None,
        filename: str = "",
        model: str = "",
        **sampling: Unpack[Sampling],
    ) -> Stream:
        """What belongs between two texts; `extra` maps names of other files to their text."""
        return Stream(self, self._start(calls.infill(prefix, suffix, extra or {}, filename, model, sampling)))

    def embed(
        self, inputs: Sequence[str | Sequence[int]], *, model: str = "", **options: Unpack[Embedding]
    ) -> Embeddings:
        """A vector for each text or list of token ids."""
        return self._ask(calls.embed(inputs, model, options))

    def tokenize(
        self, text: str, *, model: str = "", special: bool = False, bos: bool = False, pieces: bool = False
    ) -> Tokens:
        return self._ask(calls.tokenize(text, model, special=special, bos=bos, pieces=pieces))

    def detokenize(self, tokens: Sequence[int], *, model: str = "", special: bool = True) -> str:
        return self._ask(calls.detokenize(tokens, model, special=special))

    def template(self, messages: Messages, *, model: str = "", system: str | None = None) -> Prompt:
        return self._ask(calls.template(messages, model, system))

    def models(self) -> tuple[Model, ...]:
        return self._ask(calls.models())

    def load(
        self,
        model: str = "",
        *,
        n_ctx: int | None = None,
        kv_type: str | None = None,
        keep_alive: str | float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Loaded:
        """Bring a model into memory, or change how long it stays. For operators."""
        return self._ask(calls.load(model, n_ctx, kv_type, keep_alive), on_progress)

    def unload(self, model: str = "", *, force: bool = False) -> bool:
        """Take a model out of memory; `force` ends the requests that use it. False: it was not there. For operators."""
        return self._ask(calls.unload(model, force=force))

    def status(self) -> Status:
        return self._ask(calls.status())

    def subscribe(self, *topics: str) -> Subscription:
        """What happens from now on, of these topics (messages.TOPICS) or of all."""
        return Subscription(self, self._start(calls.subscribe(topics)))

    def cancel(self, request_id: int) -> bool:
        """End a request of this connection. False: it had ended already."""
        return self._ask(calls.cancel(request_id))

    def api(self) -> dict[str, Any]:
        """The daemon's protocol as data."""
        return self._ask(calls.api())

    def close(self) -> None:
        """Close the connection; the daemon cancels what is still open on it."""
        self._socket.close()
        self._calls.lose(LuceError("connection_lost", "the client closed the connection"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, ask: Ask[T], on_progress: Callable[[Progress], None] | None = None) -> T:
        call = self._start(ask)
        try:
            while not call.has_ended:
                self._receive()
                while on_progress and call.events:
                    event = call.events.popleft()
                    assert isinstance(event, Progress)
                    on_progress(event)
        finally:
            self._cancel(call)
        return call.outcome()

    def _start(self, ask: Ask[T]) -> Call[T]:
        call, data = self._calls.start(ask)
        self._send(data)
        return call

    def _cancel(self, call: Call[Any]) -> None:
        if data := self._calls.cancel(call):
            self._send(data)

    def _next(self, call: Call[Any]) -> Received | None:
        """The call's next event, None after its last."""
        while not call.events and not call.has_ended:
            self._receive()
        if call.events:
            return call.events.popleft()
        call.outcome()
        return None

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise LuceError("connection_lost", f"the daemon is gone: {error.strerror}") from None
        except BaseException:  # part of a frame may have gone: nothing can follow it
            self.close()
            raise

    def _receive(self) -> None:
        # The wait is apart, so that an interrupt of it (Ctrl-C) loses no bytes.
        if not self._poll.poll(None if self._timeout is None else self._timeout * 1000):
            raise LuceError("deadline", f"nothing came from the daemon for {self._timeout} s")
        try:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except ConnectionError:
                data = b""
            self._calls.feed(data)
        except BaseException:
            self.close()
            raise


class Stream:
    """An answer as it grows. Leaving the loop, the `with` block or calling close() cancels what is left of it."""

    def __init__(self, client: Client, call: Call[Answer]) -> None:
        self._client = client
        self._call = call

    @property
    def id(self) -> int:
        """Of the request, for `cancel`."""
        return self._call.id

    def __iter__(self) -> Iterator[str]:
        """The text of the first choice, in pieces."""
        with closing(self.events()) as events:
            for event in events:
                if isinstance(event, Text) and event.choice == 0 and event.text:
                    yield event.text

    def events(self) -> Generator[StreamEvent, None, None]:
        """Text of all choices, and progress."""
        try:
            while (event := self._client._next(self._call)) is not None:
                assert not isinstance(event, Event)
                yield event
        finally:
            self.close()

    def read(self) -> Answer:
        """The answer, waiting for the end."""
        for _ in self.events():
            pass
        return self._call.outcome()

    @property
    def answer(self) -> Answer:
        """The answer. RuntimeError: the stream has not been read to its end."""
        if not self._call.has_ended or self._call.events:
            raise RuntimeError("the stream has not been read to its end")
        return self._call.outcome()

    def close(self) -> None:
        self._client._cancel(self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Subscription:
    """Events as they happen, without end. Leaving the loop, the `with` block or calling close() ends it.

    LuceError: too_slow, if what came was not read in time.
    """

    def __init__(self, client: Client, call: Call[None]) -> None:
        self._client = client
        self._call = call
        client._next(call)  # the first event says that it holds

    def __iter__(self) -> Iterator[Event]:
        try:
            while (event := self._client._next(self._call)) is not None:
                assert isinstance(event, Event)
                yield event
        finally:
            self.close()

    def close(self) -> None:
        self._client._cancel(self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
