"""The engine's loop: receive, plan, launch, commit, report.

One thread for all models. Between steps a model that is being loaded gets on by one slice. What goes wrong in a step
is not caught: the process ends with the error as its last words, and the front starts another.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path

from luced import link
from luced.config import Config
from luced.device.choose import Chosen, choose
from luced.engine import loader
from luced.engine.plan import Model
from luced.engine.port import Port
from luced.engine.scheduler import Scheduler
from luced.engine.steps import Steps
from luced.errors import ModelError, RequestError

REPORT_S = 0.05  # between two reports of a load
QUEUE_REPORT_S = 0.2  # between two of a model's queue

Loader = Callable[[link.Load], Generator[tuple[int, int], None, Model]]  # yields (done, total) bytes, returns the model


class Resident:
    """A loaded model and its requests."""

    def __init__(self, load: link.Load, model: Model, load_s: float) -> None:
        self.model = model
        self.scheduler = Scheduler(model)
        self.steps = Steps(model, self.scheduler)
        self.loaded = link.Loaded(
            load.model,
            model.architecture,
            self.scheduler.n_ctx,
            model.n_vocab,
            model.memory,
            load_s,
            sorted(model.capabilities),
            model.pooling,
        )
        self._queue: list[int] = []  # as it was reported
        self._looked_s = 0.0

    def report_queue(self, now: float) -> list[link.Message]:
        """The queue, if it has changed; looks at it now and then only."""
        if now - self._looked_s < QUEUE_REPORT_S:
            return []
        self._looked_s = now
        if (queue := self.scheduler.waiting()) == self._queue:
            return []
        self._queue = queue
        return [link.Queued(self.loaded.model, queue)]


class Loading:
    """A model on its way."""

    def __init__(self, load: link.Load, slices: Generator[tuple[int, int], None, Model]) -> None:
        self.load = load
        self.slices = slices
        self.started_s = time.monotonic()
        self.reported_s = 0.0


class Worker:
    def __init__(self, port: Port, load: Loader) -> None:
        self._port = port
        self._load_model = load
        self._residents: dict[str, Resident] = {}  # whose turn it is comes first
        self._loading: dict[str, Loading] = {}

    def run(self) -> None:
        """Until Stop, or the end of the link."""
        while (messages := self._port.receive(self._wait_s())) is not None:
            for message in messages:
                if isinstance(message, link.Stop):
                    return self.close()
                self._port.send(self._handle(message))
            self._port.send(self._step())
            if self._loading:
                self._port.send(self._load_slice())
        self.close()

    def close(self) -> None:
        for loading in self._loading.values():
            loading.slices.close()
        for resident in self._residents.values():
            resident.model.close()

    def _wait_s(self) -> float | None:
        """How long to wait for a message: not at all where there is work, else until a paused request's pages go."""
        if self._loading:
            return 0
        residents = self._residents.values()
        for resident in residents:
            if resident.steps.is_under_way or resident.scheduler.has_work:
                return 0
        now = time.monotonic()
        times = [at_s for resident in residents if (at_s := resident.scheduler.expire(now)) is not None]
        return max(0.0, min(times) - now) if times else None

    # ---- a step ----

    def _step(self) -> list[link.Message]:
        """One step of the next model that has something to do."""
        for name, resident in list(self._residents.items()):
            resident.scheduler.expire(time.monotonic())
            messages = resident.steps.next(time.monotonic)
            if messages is not None:
                self._residents[name] = self._residents.pop(name)  # to the end of the line
                return [*messages, *resident.report_queue(time.monotonic())]
        return []

    # ---- messages ----

    def _handle(self, message: link.Message) -> list[link.Message]:
        match message:
            case link.Generate():
                return self._generate(message)
            case link.Abandon():
                for resident in self._residents.values():
                    resident.scheduler.abandon(message.id)
            case link.Pause():
                for resident in self._residents.values():
                    resident.scheduler.pause(message.id, time.monotonic() + message.keep_s)
            case link.Resume():
                for resident in self._residents.values():
                    resident.scheduler.resume(message.id)
            case link.Truncate():
                for resident in self._residents.values():
                    if message.id in resident.scheduler.requests:
                        return resident.scheduler.truncate(
                            message.id, message.choice, message.n_tokens, time.monotonic()
                        )
            case link.Load():
                return self._load(message)
            case link.Unload():
                return self._unload(message.model)
            case link.AskState():
                return [link.State(message.id, self._state())]
            case _:
                raise TypeError(f"the front does not say {type(message).__name__}")
        return []

    def _generate(self, generate: link.Generate) -> list[link.Message]:
        resident = self._residents.get(generate.model)
        try:
            if resident is None:
                raise RequestError("unknown_model", f"{generate.model} is not loaded", model=generate.model)
            resident.scheduler.submit(generate, time.monotonic())
        except RequestError as error:
            return [link.Failed(generate.id, error.to_wire())]
        return []

    def _state(self) -> dict[str, object]:
        now = time.monotonic()
        models = [{**vars(r.loaded), **r.scheduler.state(now)} for r in self._residents.values()]
        return {"models": models, "loading": list(self._loading)}

    # ---- models ----

    def _load(self, load: link.Load) -> list[link.Message]:
        if load.model in self._residents:
            return [self._residents[load.model].loaded]
        if load.model not in self._loading:
            self._loading[load.model] = Loading(load, self._load_model(load))
        return []

    def _unload(self, name: str) -> list[link.Message]:
        messages: list[link.Message] = []
        if name in self._loading:
            self._loading.pop(name).slices.close()
        elif name in self._residents:
            resident = self._residents.pop(name)
            error = RequestError("cancelled", f"{name} was unloaded", model=name).to_wire()
            messages += [link.Failed(request_id, error) for request_id in resident.scheduler.requests]
            resident.model.close()
        return [*messages, link.Unloaded(name)]

    def _load_slice(self) -> list[link.Message]:
        """Gets the first model that is being loaded on by one slice."""
        name, loading = next(iter(self._loading.items()))
        now = time.monotonic()
        try:
            done_bytes, total_bytes = next(loading.slices)
        except StopIteration as end:
            del self._loading[name]
            resident = self._residents[name] = Resident(loading.load, end.value, time.monotonic() - loading.started_s)
            return [resident.loaded]
        except MemoryError:
            return self._refuse(
                name, ModelError("no_memory", f"there is not enough memory to load {name}", lack_bytes=1)
            )
        except ModelError as error:
            return self._refuse(name, error)
        if now - loading.reported_s < REPORT_S:
            return []
        loading.reported_s = now
        return [link.Loading(name, done_bytes, total_bytes)]

    def _refuse(self, name: str, error: ModelError) -> list[link.Message]:
        del self._loading[name]
        return [link.Refused(name, error.to_wire())]


def open_device(config: Config) -> Chosen:
    """ModelError: there is no such device, or it cannot be used."""
    return choose(config.device, config.isa, config.n_threads)


def main(link_fd: int, config: Config, open_device: Callable[[Config], Chosen] = open_device) -> None:
    """The engine process: serves the link until it ends. ModelError: as open_device. EngineError: the device."""
    faulthandler.enable()  # if it dies of a signal, its last words say where
    with socket.socket(fileno=link_fd) as end:
        device, passed_over = open_device(config)

        def load(message: link.Load) -> Generator[tuple[int, int], None, Model]:
            wants = loader.Wants(message.n_ctx, message.kv_type, config.n_batch, config.cache_bytes, config.state_bytes)
            return loader.load(Path(message.path), device, wants)

        port = Port(end)
        facts = (device.name, device.device_name, device.isa, device.n_threads, list(passed_over))
        port.send([link.Ready(os.getpid(), *facts)])
        Worker(port, load).run()
        device.close()
