"""Keeps an engine running: starts it, restarts it when it dies, and hands its messages to whom they are for."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import trio

from luced import link
from luced.errors import EngineError
from luced.front.events import Events
from luced.front.journal import entry
from luced.front.process import EngineProcess, describe_exit
from luced.front.request import EngineRequest

BACKOFF_S = (0.0, 0.0, 0.2, 1.0, 5.0)  # before the next start, by the number of short lives in a row
SHORT_LIFE_S = 10.0
HOPELESS = 3  # starts in a row that failed; from then on nobody is kept waiting
STOP_S = 3.0  # from Stop to the end of the process

log = logging.getLogger("luced.supervisor")


class Models(Protocol):
    """Who is told of models and of the engine's lives (luced.front.residency)."""

    def engine_ready(self) -> None: ...
    def engine_lost(self, error: EngineError, hopeless: bool) -> None: ...
    def receive(self, message: link.Loading | link.Loaded | link.Unloaded | link.Refused) -> None: ...


class Supervisor:
    """`state` is starting, ready, failed (it does not start, but is still tried) or stopped."""

    def __init__(self, command: Sequence[str], events: Events, pause_s: float) -> None:
        self.events = events
        self.pause_s = pause_s  # that the engine keeps the pages of a request whose reader is slow
        self.state = "starting"
        self.ready: link.Ready | None = None
        self.n_restarts = 0
        self.models: Models | None = None
        self._command = command
        self._engine: EngineProcess | None = None
        self._requests: dict[int, EngineRequest] = {}
        self._ids = itertools.count(1)
        self._asked: dict[int, trio.Event] = {}  # for the engine's state
        self._states: dict[int, dict[str, Any]] = {}
        self._last_failure = ""
        self._stopping = trio.Event()

    def send(self, message: link.Message) -> None:
        """What is sent while no engine is ready is lost; whoever sent it is told by engine_lost or engine_ready."""
        if self._engine is not None and self.ready is not None:
            self._engine.send(message)

    @contextmanager
    def request(self, generate: link.Generate) -> Iterator[EngineRequest]:
        """Hands a request to the engine under a new id. However the block is left, the engine forgets what had not
        ended. EngineError: there is no engine."""
        if self.ready is None:
            raise self.failure()
        generate = replace(generate, id=next(self._ids))
        request = self._requests[generate.id] = EngineRequest(self, generate)
        self.send(generate)
        try:
            yield request
        finally:
            if self._requests.pop(request.id, None) is not None:
                self.send(link.Abandon(request.id))

    async def ask_state(self, wait_s: float) -> dict[str, Any] | None:
        """What the engine says of its models (link.State); None: it is not ready, or does not answer in time."""
        if self.ready is None:
            return None
        number, answered = next(self._ids), trio.Event()
        self._asked[number] = answered
        self.send(link.AskState(number))
        try:
            with trio.move_on_after(wait_s):
                await answered.wait()
            return self._states.get(number)
        finally:
            del self._asked[number]
            self._states.pop(number, None)

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        ready = self.ready
        return {
            "state": self.state,
            "pid": ready.pid if ready else None,
            "device": ready.device_name if ready else None,
            "isa": ready.isa if ready else None,
            "threads": ready.n_threads if ready else None,
            "restarts": self.n_restarts,
            "last_failure": self._last_failure,
        }

    def failure(self) -> EngineError:
        return EngineError("engine_failed", f"the engine {self._last_failure or 'has not started yet'}")

    async def run(self) -> None:
        n_short = n_failed = 0
        while not self._stopping.is_set():
            started_at = trio.current_time()
            was_ready = await self._live()
            if self._stopping.is_set():
                break
            n_short = n_short + 1 if trio.current_time() - started_at < SHORT_LIFE_S else 0
            n_failed = 0 if was_ready else n_failed + 1
            self._lost(hopeless=n_failed >= HOPELESS)
            with trio.move_on_after(BACKOFF_S[min(n_short, len(BACKOFF_S) - 1)]):
                await self._stopping.wait()
            self.n_restarts += 1
        self.state = "stopped"

    def stop(self) -> None:
        """Ends the engine; `run` returns."""
        self._stopping.set()

    async def _live(self) -> bool:
        """One life of the engine, from start to end. True: it was ready."""
        try:
            self._engine = engine = await EngineProcess.start(self._command)
        except OSError as error:
            self._last_failure = f"cannot be started: {error.strerror}"
            return False
        with trio.CancelScope() as life:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_stopped, engine, life)
                status = await engine.run(self._receive)
                self._last_failure = describe_exit(status)
                if self.ready is None and engine.last_lines:
                    self._last_failure += " before it was ready; it said: " + " | ".join(engine.last_lines)
                nursery.cancel_scope.cancel()
        was_ready, self.ready, self._engine = self.ready is not None, None, None
        return was_ready

    async def _end_when_stopped(self, engine: EngineProcess, life: trio.CancelScope) -> None:
        await self._stopping.wait()
        engine.send(link.Stop())
        life.deadline = trio.current_time() + STOP_S

    def _lost(self, hopeless: bool) -> None:
        self.state = "failed" if hopeless else "starting"
        log.error(entry("the engine is lost", requests=len(self._requests), failure=self._last_failure))
        self.events.publish("degradations", "engine_lost", failure=self._last_failure, requests=len(self._requests))
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.lose()
        if self.models is not None:
            self.models.engine_lost(self.failure(), hopeless)

    def _receive(self, message: link.Message) -> None:
        match message:
            case link.Ready():
                self.ready, self.state = message, "ready"
                device = message.device_name
                log.info(entry("the engine is ready", engine=message.pid, device=device, isa=message.isa))
                if self.models is not None:
                    self.models.engine_ready()
            case link.Loading() | link.Loaded() | link.Unloaded() | link.Refused():
                self._publish(message)
                if self.models is not None:
                    self.models.receive(message)
            case link.Queued():
                for n_ahead, request_id in enumerate(message.ids):
                    if request := self._requests.get(request_id):
                        request.move(n_ahead)
            case link.State():
                if message.id in self._asked:
                    self._states[message.id] = message.state
                    self._asked[message.id].set()
            case link.Progress() | link.Tokens() | link.Embedded() | link.Finished() | link.Failed():
                self._deliver(message)
            case _:
                raise TypeError(f"the engine does not say {type(message).__name__}")

    def _publish(self, message: link.Loading | link.Loaded | link.Unloaded | link.Refused) -> None:
        facts: dict[str, Any] = {"model": message.model}
        match message:
            case link.Loading():
                facts |= {"done": message.done_bytes, "total": message.total_bytes}
            case link.Loaded():
                facts |= {"memory": message.memory, "context": message.n_ctx, "load_s": message.load_s}
            case link.Refused():
                facts |= {"error": message.error["name"], "message": message.error["message"]}
        self.events.publish("models", type(message).__name__.lower(), **facts)

    def _deliver(self, message: link.Progress | link.Tokens | link.Embedded | link.Finished | link.Failed) -> None:
        request = self._requests.get(message.id)
        if request is None:  # it was abandoned
            return
        request.deliver(message)
        if isinstance(message, link.Finished):
            request.n_open -= 1
        if isinstance(message, link.Failed) or request.n_open == 0:
            del self._requests[message.id]
