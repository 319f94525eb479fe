"""Keeps an engine running: starts it, restarts it when it dies, and hands its messages to whom they are for."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import trio

from luced import link
from luced.errors import EngineError, RequestError
from luced.front import report
from luced.front.child import Child, start_engine
from luced.front.death import MAX_KILLS, Death, Deaths
from luced.front.events import Events
from luced.front.journal import entry
from luced.front.process import EngineProcess
from luced.front.request import EngineRequest
from luced.front.roster import Roster

BACKOFF_S = (0.0, 0.0, 0.2, 1.0, 5.0)  # before the next start, by the number of vain lives in a row
LONG_LIFE_S = 10.0  # not in vain, even if no request has got on in it
MAX_FAILED_STARTS = 3  # in a row; from then on nobody is kept waiting
STOP_S = 3.0  # from Stop to the end of the process

log = logging.getLogger("luced.supervisor")


class Models(Protocol):
    """Who is told of models and of the engine's lives (luced.front.residency)."""

    def engine_ready(self) -> None: ...
    def engine_lost(self, death: Death, hopeless: bool) -> None: ...
    def receive(self, message: link.Loading | link.Loaded | link.Unloaded | link.Refused) -> None: ...
    def state(self, name: str) -> str: ...
    @property
    def is_loading(self) -> bool: ...


class Supervisor:
    """`state` is starting, ready, failed (it does not start, but is still tried) or stopped."""

    models: Models  # who sets it is told

    def __init__(
        self, command: Sequence[str], events: Events, pause_s: float, report_dir: Path, first: Child | None = None
    ) -> None:
        """`pause_s`: as of Roster. `report_dir`: for reports of requests that the engine dies of. `first`: an engine
        that runs already."""
        self.events = events
        self.roster = Roster(self.send, lambda name: self.models.state(name), lambda: self.models.is_loading, pause_s)
        self.state = "starting"
        self.ready: link.Ready | None = None
        self.n_restarts = 0
        self._kind = ""  # of the last engine's device
        self._command = command
        self._first = first
        self._report_dir = report_dir
        self._engine: EngineProcess | None = None
        self._ids = itertools.count(1)
        self._asked: dict[int, trio.Event] = {}  # for the engine's state
        self._states: dict[int, dict[str, Any]] = {}
        self._last_death: Death | None = None
        self._stopping = trio.Event()

    def send(self, message: link.Message) -> None:
        """What is sent while no engine is ready is lost; whoever sent it is told by engine_lost or engine_ready."""
        if self._engine is not None and self.ready is not None:
            self._engine.send(message)

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
            "last_failure": self._last_death.cause if self._last_death else "",
            "kind": ready.device if ready else None,
            "passed_over": ready.passed_over if ready else [],
        }

    def failure(self) -> EngineError:
        """It does not start."""
        assert self._last_death is not None
        return self._last_death.error()

    async def run(self) -> None:
        n_vain, starts = 0, Deaths()
        while not self._stopping.is_set():
            started_at = trio.current_time()
            death = await self._live()
            if self._stopping.is_set():
                break
            was_vain = not self.roster.has_got_on and trio.current_time() - started_at < LONG_LIFE_S
            n_vain = n_vain + 1 if was_vain else 0
            if death.was_ready:
                starts.forget()
            else:
                starts.count(death)
            await self._lose(death, hopeless=starts.n_faults >= MAX_FAILED_STARTS or starts.n_kills >= MAX_KILLS)
            with trio.move_on_after(BACKOFF_S[min(n_vain, len(BACKOFF_S) - 1)]):
                await self._stopping.wait()
            self.n_restarts += 1
        self.state = "stopped"

    def stop(self) -> None:
        """Ends the engine; `run` returns."""
        self._stopping.set()

    async def _live(self) -> Death:
        """One life of the engine, from start to end."""
        child, self._first = self._first, None
        try:
            if child is None:
                child = await trio.to_thread.run_sync(start_engine, self._command)
        except OSError as error:
            return Death(None, False, (error.strerror or type(error).__name__,))
        self._engine = engine = EngineProcess(child)
        status = 0
        with trio.CancelScope() as life:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_stopped, engine, life)
                status = await engine.run(self._receive)
                nursery.cancel_scope.cancel()
        was_ready, self.ready, self._engine = self.ready is not None, None, None
        return Death(status, was_ready, tuple(engine.last_lines))

    async def _end_when_stopped(self, engine: EngineProcess, life: trio.CancelScope) -> None:
        await self._stopping.wait()
        engine.send(link.Stop())
        life.deadline = trio.current_time() + STOP_S

    async def _lose(self, death: Death, hopeless: bool) -> None:
        self.state = "failed" if hopeless else "starting"
        self._last_death = death
        log.error(entry("the engine is lost", requests=len(self.roster), failure=death.cause))
        self.events.publish("degradations", "engine_lost", failure=death.cause, requests=len(self.roster))
        blamed = self.roster.lose(death, self.n_restarts + 1)
        self.models.engine_lost(death, hopeless)
        if blamed is not None:
            await self._refuse(blamed, death)

    async def _refuse(self, request: EngineRequest, death: Death) -> None:
        """The engine dies of this request, also when it has no other."""
        facts = {"failure": death.cause, "last_lines": death.last_lines, "request": request.describe()}
        name = await trio.to_thread.run_sync(report.write, self._report_dir, facts)
        log.error(entry("a request is refused: the engine dies of it", model=request.generate.model, report=name))
        self.events.publish("degradations", "request_refused", model=request.generate.model, report=name)
        what = f"the engine dies of this request: it {death.cause}, also when it worked on nothing else"
        error = RequestError("engine_crash", what, report=name)
        if not request.has_spoken:
            self.roster.guilty.add(request.generate, error)
        request.fail(error)

    def _receive(self, message: link.Message) -> None:
        match message:
            case link.Tokens() | link.Progress() | link.Embedded() | link.Finished() | link.Failed():
                self.roster.deliver(message)
            case link.Ready():
                self.ready, self.state = message, "ready"
                self._tell_device(message)
                self.models.engine_ready()
            case link.Loading() | link.Loaded() | link.Unloaded() | link.Refused():
                self._publish(message)
                self.models.receive(message)
                if isinstance(message, link.Loading):
                    self.roster.tell_loading(message)
                else:
                    self.roster.dispatch()
            case link.Queued():
                self.roster.move(message)
            case link.State():
                if message.id in self._asked:
                    self._states[message.id] = message.state
                    self._asked[message.id].set()
            case _:
                raise TypeError(f"the engine does not say {type(message).__name__}")

    def _tell_device(self, ready: link.Ready) -> None:
        facts = {"kind": ready.device, "device": ready.device_name, "isa": ready.isa}
        log.info(entry("the engine is ready", engine=ready.pid, **facts))
        for why in ready.passed_over:
            log.warning(entry("passed over by device = auto", device=why))
        if self._kind not in ("", ready.device):
            self.events.publish("degradations", "device_changed", was=self._kind, **facts)
        self._kind = ready.device

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
