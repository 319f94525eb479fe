"""Which models the engine holds. A load is asked for once, however many requests wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from luce.errors import LuceError, from_wire
from luced import link
from luced.config import Config
from luced.errors import EngineError
from luced.front.journal import entry
from luced.front.supervisor import Supervisor

MAX_DEATHS = 2  # of the engine while it loads one model; then the load has failed

log = logging.getLogger("luced.residency")

OnProgress = Callable[[int, int], Awaitable[None]]  # done, total bytes


@dataclass
class Resident:
    """A model that the engine holds or is about to. `changed` is set, and replaced, at every change."""

    name: str
    path: Path
    loaded: link.Loaded | None = None
    error: LuceError | None = None
    done_bytes: int = 0
    total_bytes: int = 0
    since: float = 0.0  # Unix time at which it was loaded
    n_deaths: int = 0
    changed: trio.Event = field(default_factory=trio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class Residency:
    def __init__(self, supervisor: Supervisor, config: Config) -> None:
        self.residents: dict[str, Resident] = {}
        self._supervisor = supervisor
        self._config = config
        supervisor.models = self

    def want(self, name: str, path: Path) -> Resident:
        """Sees to it that the model is loaded or being loaded. EngineError: the engine does not start."""
        if self._supervisor.state == "failed":
            raise self._supervisor.failure()
        resident = self.residents.get(name)
        if resident is None:
            resident = self.residents[name] = Resident(name, path)
            self._load(resident)
        return resident

    async def loaded(self, name: str, path: Path, on_progress: OnProgress) -> link.Loaded:
        """Waits for the model. LuceError: it was refused, or the engine died of it."""
        resident = self.want(name, path)
        while resident.loaded is None:
            changed = resident.changed
            if resident.error is not None:
                raise from_wire(resident.error.to_wire())  # one of its own for each who waits
            if resident.total_bytes:
                await on_progress(resident.done_bytes, resident.total_bytes)
            await changed.wait()
        return resident.loaded

    def state(self, name: str) -> str:
        resident = self.residents.get(name)
        if resident is None:
            return "here"
        return "loading" if resident.loaded is None else "loaded"

    def describe(self) -> list[dict[str, Any]]:
        """The loaded models, for `status`."""
        return [
            {"name": r.name, "memory": r.loaded.memory, "context": r.loaded.n_ctx, "since": r.since}
            for r in self.residents.values()
            if r.loaded is not None
        ]

    def engine_ready(self) -> None:
        for resident in self.residents.values():
            self._load(resident)

    def engine_lost(self, error: EngineError, hopeless: bool) -> None:
        for resident in list(self.residents.values()):
            if resident.loaded is None and resident.total_bytes:
                resident.n_deaths += 1
            resident.loaded, resident.done_bytes, resident.total_bytes = None, 0, 0
            if hopeless or resident.n_deaths >= MAX_DEATHS:
                self._drop(resident, error)

    def receive(self, message: link.Loading | link.Loaded | link.Unloaded | link.Refused) -> None:
        resident = self.residents.get(message.model)
        if resident is None:
            return
        match message:
            case link.Loading():
                resident.done_bytes, resident.total_bytes = message.done_bytes, message.total_bytes
                resident.change()
            case link.Loaded():
                resident.loaded, resident.since, resident.n_deaths = message, time.time(), 0
                log.info(entry("loaded", model=message.model, context=message.n_ctx, load_s=message.load_s))
                resident.change()
            case link.Refused():
                self._drop(resident, from_wire(message.error))
            case link.Unloaded():
                del self.residents[message.model]

    def _load(self, resident: Resident) -> None:
        config = self._config
        self._supervisor.send(link.Load(resident.name, str(resident.path), config.n_ctx, config.kv_type))

    def _drop(self, resident: Resident, error: LuceError) -> None:
        log.error(entry("not loaded", model=resident.name, error=error.name, message=error))
        del self.residents[resident.name]
        resident.error = error
        resident.change()
