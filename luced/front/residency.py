"""Which models the engine holds, for whom and until when.

A load is asked for once, however many requests wait for it. A model that no request holds leaves when its time is
over, or before that where another one does not fit: then the least recently used leaves first.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from luce.errors import LuceError, from_wire
from luce.fields import seconds
from luced import link
from luced.config import Config
from luced.errors import ModelError, RequestError
from luced.front.death import MAX_KILLS, Death
from luced.front.journal import entry as line
from luced.front.resident import Resident, n_bytes
from luced.front.supervisor import Supervisor
from luced.gguf.catalogue import Entry

MAX_FAULTS = 2  # of the engine in a row while it loads one model; then the load has failed

log = logging.getLogger("luced.residency")

OnProgress = Callable[[int, int], Awaitable[None]]  # done, total bytes


class Residency:
    def __init__(self, supervisor: Supervisor, config: Config) -> None:
        self.residents: dict[str, Resident] = {}
        self._leaving: dict[str, deque[trio.Event]] = {}  # the engine has been told to unload them; set when it has
        self._timed = trio.Event()  # set, and replaced, when a model gets a time to leave at
        self._supervisor = supervisor
        self.config = config
        supervisor.models = self

    async def run(self) -> None:
        """Unloads models when their time is over. Never returns."""
        while True:
            timed = self._timed
            for resident in list(self.residents.values()):
                if resident.leaves_at <= trio.current_time():
                    log.info(line("unloaded", model=resident.name, idle_s=resident.keep_alive_s))
                    self._unload(resident)
            with trio.move_on_at(min((r.leaves_at for r in self.residents.values()), default=math.inf)):
                await timed.wait()

    def want(self, entry: Entry, n_ctx: int | None = None, kv_type: str | None = None) -> Resident:
        """Sees to it that the model is loaded or being loaded. What is None may be as it is, or else as configured.

        EngineError: the engine does not start. RequestError("busy"): it is used with other settings, or as its file was
        before somebody changed it.
        """
        if self._supervisor.state == "failed":
            raise self._supervisor.failure()
        resident = self.residents.get(entry.name)
        if resident is not None and not resident.suits(entry, n_ctx, kv_type):
            if resident.n_users:
                raise in_use(resident)
            self._unload(resident)
            resident = None
        if resident is None:
            config = self.config
            settings: dict[str, Any] = {
                "n_ctx": config.n_ctx,
                "kv_type": config.kv_type,
                "keep_alive": config.keep_alive,
            }
            settings |= config.of_model(entry.names)
            resident = self.residents[entry.name] = Resident(
                entry,
                settings["n_ctx"] if n_ctx is None else n_ctx,
                settings["kv_type"] if kv_type is None else kv_type,
                seconds(settings["keep_alive"]),
            )
            self._load(resident)
        return resident

    @contextmanager
    def hold(
        self,
        entry: Entry,
        keep_alive: str | float | None = None,
        n_ctx: int | None = None,
        kv_type: str | None = None,
    ) -> Iterator[Resident]:
        """The model, loaded or being loaded: it stays while it is held, and for `keep_alive` after that. As `want`."""
        resident = self.want(entry, n_ctx, kv_type)
        if keep_alive is not None:
            resident.keep_alive_s = seconds(keep_alive)
        resident.n_users += 1
        resident.leaves_at = math.inf
        try:
            yield resident
        finally:
            resident.n_users -= 1
            self._leave_later(resident)

    async def loaded(self, resident: Resident, on_progress: OnProgress) -> link.Loaded:
        """Waits for a model that is held. LuceError: it was refused or unloaded, or the engine died of it."""
        while resident.loaded is None:
            changed = resident.changed
            if resident.error is not None:
                raise from_wire(resident.error.to_wire())  # one of its own for each who waits
            if resident.total_bytes:
                await on_progress(resident.done_bytes, resident.total_bytes)
            await changed.wait()
        return resident.loaded

    async def unload(self, name: str, force: bool) -> bool:
        """Waits until its memory is free. False: it is not there. RequestError("busy"): requests hold it; with force
        they end."""
        resident = self.residents.get(name)
        if resident is None:
            return False
        if resident.n_users and not force:
            raise in_use(resident)
        await self._unload(resident).wait()
        return True

    @property
    def is_loading(self) -> bool:
        return any(resident.loaded is None for resident in self.residents.values())

    def state(self, name: str) -> str:
        resident = self.residents.get(name)
        if resident is None:
            return "here"
        return "loading" if resident.loaded is None else "loaded"

    def describe(self) -> list[dict[str, Any]]:
        """The loaded models, for `status`."""
        return [resident.describe() for resident in self.residents.values() if resident.loaded is not None]

    # ---- the engine ----

    def engine_ready(self) -> None:
        """All return, with the settings and the time that they had; but no request goes on with another file."""
        for resident in sorted(self.residents.values(), key=lambda r: (r.n_users > 0, r.used_at), reverse=True):
            if resident.had_ctx and resident.entry.has_changed():
                self._drop(resident, _changed(resident))
            else:
                self._load(resident)

    def engine_lost(self, death: Death, hopeless: bool) -> None:
        for leaving in self._leaving.values():
            for gone in leaving:
                gone.set()
        self._leaving.clear()
        for resident in list(self.residents.values()):
            deaths = resident.deaths
            if resident.loaded is None and resident.total_bytes:
                deaths.count(death)
            resident.loaded, resident.done_bytes, resident.total_bytes = None, 0, 0
            if hopeless or deaths.n_faults >= MAX_FAULTS or deaths.n_kills >= MAX_KILLS:
                self._drop(resident, death.error(deaths.n))

    def receive(self, message: link.Loading | link.Loaded | link.Unloaded | link.Refused) -> None:
        name = message.model
        if name in self._leaving:  # what is said until it is gone is not of the one that may have come after it
            if isinstance(message, link.Unloaded):
                self._leaving[name].popleft().set()
                if not self._leaving[name]:
                    del self._leaving[name]
            return
        resident = self.residents.get(name)
        if resident is None:
            return
        match message:
            case link.Loading():
                resident.done_bytes, resident.total_bytes = message.done_bytes, message.total_bytes
                resident.change()
            case link.Loaded():
                resident.loaded, resident.since = message, time.time()
                resident.had_ctx = message.n_ctx
                resident.deaths.forget()
                log.info(line("loaded", model=name, context=message.n_ctx, load_s=message.load_s))
                if not resident.n_users and resident.leaves_at == math.inf:
                    self._leave_later(resident)
                resident.change()
            case link.Refused():
                self._refused(resident, from_wire(message.error))

    def _load(self, resident: Resident) -> None:
        n_ctx = resident.n_ctx or resident.had_ctx  # requests that it had count on that
        self._supervisor.send(link.Load(resident.name, str(resident.entry.path), n_ctx, resident.kv_type))

    def _unload(self, resident: Resident) -> trio.Event:
        """The event is set when its memory is free. Who waits for it gets an error, as do its requests."""
        del self.residents[resident.name]
        self._end(resident, RequestError("cancelled", f"{resident.name} was unloaded"))
        gone = trio.Event()
        if self._supervisor.ready is None:
            gone.set()
        else:
            self._leaving.setdefault(resident.name, deque()).append(gone)
            self._supervisor.send(link.Unload(resident.name))
        return gone

    def _refused(self, resident: Resident, error: LuceError) -> None:
        """Where only memory is lacking, the model that was not used for the longest time makes room, if that can help;
        the engine frees it before it tries again."""
        others = [r for r in self.residents.values() if r is not resident and r.loaded is not None]
        idle = [r for r in others if not r.n_users]
        lack_bytes = error.data.get("lack_bytes", math.inf)
        if error.name == "no_memory" and lack_bytes <= sum(map(n_bytes, idle)):
            oldest = min(idle, key=lambda r: r.used_at)
            log.info(line("unloaded", model=oldest.name, makes_room_for=resident.name))
            self._unload(oldest)
            self._load(resident)
            return
        if error.name == "no_memory":
            error.data["models"] = {r.name: n_bytes(r) for r in others}
            if lack_bytes <= sum(map(n_bytes, others)):
                names = ", ".join(r.name for r in others if r.n_users)
                error = RequestError("busy", f"{error.message}; requests use {names}", **error.data)
        self._drop(resident, error)

    def _drop(self, resident: Resident, error: LuceError) -> None:
        log.error(line("not loaded", model=resident.name, error=error.name, message=error))
        del self.residents[resident.name]
        self._end(resident, error)

    def _end(self, resident: Resident, error: LuceError) -> None:
        """Who waits for it gets the error."""
        resident.error = error
        resident.change()
        self._supervisor.roster.end(resident.name, error)

    def _leave_later(self, resident: Resident) -> None:
        """Its time begins, unless requests hold it."""
        resident.used_at = trio.current_time()
        if not resident.n_users:
            resident.leaves_at = resident.used_at + resident.keep_alive_s
            self._timed.set()
            self._timed = trio.Event()


def _changed(resident: Resident) -> ModelError:
    """The engine may have died of it: it reads weights where the file is mapped."""
    what = f"{resident.entry.path} has changed since {resident.name} was loaded"
    remedy = "ask again, and it is loaded as it is now; to replace a model file, rename the new one over it"
    return ModelError("bad_model_file", what, remedy, file=str(resident.entry.path))


def in_use(resident: Resident) -> RequestError:
    what = f"{resident.n_users} requests use {resident.name}"
    if resident.entry.has_changed():
        what += ", whose file has changed since it was loaded"
    return RequestError("busy", what, "wait until they have ended", model=resident.name, requests=resident.n_users)
