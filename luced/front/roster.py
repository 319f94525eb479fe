"""All requests for the engine: which of them it has, which wait, and of which of them it died.

A request goes to the engine when its model is loaded. When the engine dies, all that it had go to the next one, with
what they have said. Those whom two faults in a row met before they got on are suspects: each runs alone until it gets
on, and the one that faults alone is blamed (docs/architecture.md §12).
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter

from luce.errors import LuceError
from luced import link
from luced.front.death import MAX_KILLS, Death
from luced.front.guilty import Guilty
from luced.front.request import EngineRequest, Wait

MAX_FAULTS = 2  # in a row, before a request is suspected

_order = attrgetter("order")

FromEngine = link.Progress | link.Tokens | link.Embedded | link.Finished | link.Failed


class Roster:
    """`send` tells the engine something. `state` of a model: here, loading or loaded. `is_loading`: some model is."""

    def __init__(
        self,
        send: Callable[[link.Message], None],
        state: Callable[[str], str],
        is_loading: Callable[[], bool],
        pause_s: float,
    ) -> None:
        self.send = send
        self.guilty = Guilty()
        self.has_got_on = False  # somebody has, in this life of the engine
        self._state = state
        self._is_loading = is_loading
        self._pause_s = pause_s  # that the engine keeps the pages of a request whose reader is slow
        self._orders, self._numbers = itertools.count(1), itertools.count(1)
        self._running: dict[int, EngineRequest] = {}  # the engine has them
        self._waiting: list[EngineRequest] = []
        self._suspects: list[EngineRequest] = []
        self._n_given = 0  # in this life of the engine
        self._loads_first = False  # the last death was a fault: was it of a load or of a request?

    def __len__(self) -> int:
        """How many the engine has."""
        return len(self._running)

    @contextmanager
    def request(self, generate: link.Generate) -> Iterator[EngineRequest]:
        """Hands a request to the engine, now or when it can be. However the block is left, it is forgotten.

        RequestError("engine_crash"): the engine has just died of the same one.
        """
        self.guilty.check(generate)
        request = EngineRequest(self, generate, next(self._orders))
        self._waiting.append(request)
        self.dispatch()
        try:
            yield request
        finally:
            if request.id:
                self._take(request)
            elif request in self._waiting:
                self._waiting.remove(request)
            self._clear(request)

    def dispatch(self) -> None:
        """Gives the engine what it may have now."""
        if self._loads_first and self._is_loading():
            return
        self._loads_first = False
        if self._suspects and self._running:
            return
        waiting, self._waiting = [request for request in self._waiting if request.n_open], []
        for request in waiting:
            may_run = not self._suspects or (request in self._suspects and not self._running)
            if may_run and self._state(request.generate.model) == "loaded":
                self._give(request)
            else:
                self._waiting.append(request)

    def deliver(self, message: FromEngine) -> None:
        request = self._running.get(message.id)
        if request is None:  # it was abandoned
            return
        got_on = request.deliver(message)
        if got_on:
            self.has_got_on = True
            request.deaths.forget()
        if isinstance(message, link.Failed) or not request.n_open:
            del self._running[message.id]
            request.leave()
        if got_on and self._suspects:
            self._clear(request)

    def lose(self, death: Death, n_restarts: int) -> EngineRequest | None:
        """The engine is gone: the request that is to blame, which is not given to another one."""
        lost, self._running = list(self._running.values()), {}
        self.has_got_on, self._loads_first = False, death.is_fault
        for request in lost:
            request.deaths.count(death)
            request.lose(n_restarts)
        lost = [request for request in lost if request.n_open]
        # An engine that had another before may not have heard yet that it is gone.
        is_alone = death.is_fault and len(lost) == self._n_given == 1 and not self._is_loading()
        self._n_given = 0
        blamed = lost.pop() if is_alone and lost[0].deaths.n_faults >= MAX_FAULTS else None
        for request in lost:
            if request.deaths.n_kills >= MAX_KILLS:
                request.fail(death.error(request.deaths.n))
            else:
                insort(self._waiting, request, key=_order)
        self._suspects = [request for request in self._waiting if request.deaths.n_faults >= MAX_FAULTS]
        return blamed

    def end(self, model: str, error: LuceError) -> None:
        """The model will not be there: those who wait for it get the error."""
        for request in [request for request in self._waiting if request.generate.model == model]:
            self._waiting.remove(request)
            request.fail(error)
            self._clear(request)

    def pause(self, request: EngineRequest) -> None:
        if request not in self._suspects:
            self.send(link.Pause(request.id, self._pause_s))

    def move(self, queued: link.Queued) -> None:
        for n_ahead, number in enumerate(queued.ids):
            if request := self._running.get(number):
                request.move(n_ahead)

    def tell_loading(self, loading: link.Loading) -> None:
        for request in self._waiting:
            if request.generate.model == loading.model:
                request.wait(Wait("load", loading.done_bytes, loading.total_bytes))

    def _give(self, request: EngineRequest) -> None:
        number = next(self._numbers)
        self._n_given += 1
        self._running[number] = request
        self.send(request.submit(number))
        if request.is_paused:
            self.pause(request)

    def _take(self, request: EngineRequest) -> None:
        del self._running[request.id]
        self.send(link.Abandon(request.id))
        request.leave()

    def _clear(self, request: EngineRequest) -> None:
        """It is no suspect any more. While there are others, it makes way for the next one."""
        if request not in self._suspects:
            return
        self._suspects.remove(request)
        if request.id and self._suspects:
            self._take(request)
            if request.n_open:
                insort(self._waiting, request, key=_order)
        elif request.id and request.is_paused:
            self.pause(request)
        self.dispatch()
