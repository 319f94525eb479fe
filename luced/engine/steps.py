"""The steps of a model: planned, launched, read and committed, one after the other, but that the next one is launched
before the last is read where the model gains by it and the scheduler knows its rows."""

from __future__ import annotations

from collections.abc import Callable

from luced.engine.ahead import step_after
from luced.engine.plan import Model, Plan
from luced.engine.scheduler import Scheduler
from luced.link import Message


class Steps:
    def __init__(self, model: Model, scheduler: Scheduler) -> None:
        self._model, self._scheduler = model, scheduler
        self._under_way: Plan | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether one was launched and is to be read."""
        return self._under_way is not None

    def next(self, clock: Callable[[], float]) -> list[Message] | None:
        """Commits the next step: what to tell the front. None: there is nothing to do."""
        scheduler, model = self._scheduler, self._model
        plan = self._under_way
        if plan is None:
            plan = scheduler.plan(clock())
            if plan is None:
                return None
            model.launch(plan)
        self._under_way = step_after(plan, scheduler.cache, scheduler.classes) if model.runs_ahead else None
        if self._under_way is not None:
            model.launch(self._under_way)
        return scheduler.commit(plan, model.read(), clock())
