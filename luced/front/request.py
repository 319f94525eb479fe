"""A request for the engine: its messages in order, no more of them than somebody reads, and what it has said so far."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from luce.errors import LuceError
from luced import link
from luced.front.death import Deaths

if TYPE_CHECKING:
    from luced.front.roster import Roster

MAX_AHEAD = 256  # tokens that the engine is ahead of who reads; then it pauses until half of them are read


class Wait(NamedTuple):
    """What a request waits for, as the notification `progress` tells it: restart, load or queue."""

    phase: str
    done: int
    total: int = 0


class EngineRequest:
    """`receive` gives its messages. `n_open`: choices that are not finished. `is_paused`: its reader is too slow.
    `deaths` of engines that had it, since it last got on."""

    def __init__(self, roster: Roster, generate: link.Generate, order: int) -> None:
        self.id = 0  # that the engine knows it by; 0: the engine does not have it
        self.order = order  # of arrival
        self.generate = generate
        self.n_open = generate.n
        self.is_paused = False
        self.deaths = Deaths()
        self._roster = roster
        self._said: list[list[int] | None] = [[] for _ in range(generate.n)]  # None: the choice has ended
        self._n_read = 0  # tokens of the prompt
        self._n_cached: int | None = None  # of those, when it first began
        self._cuts: dict[int, int] = {}  # tokens to which choices are truncated
        self._messages: collections.deque[link.Message] = collections.deque()
        self._n_unread = 0  # tokens
        self._hear: Callable[[link.Tokens], bool] | None = None
        self._bug: Exception | None = None  # of _hear
        self._wait: Wait | None = None  # if it is news
        self._last_place = -1  # in the queue
        self._news = trio.Event()
        self._phase, self._since = "queue_s", trio.current_time()
        self._spent = dict.fromkeys(("queue_s", "prefill_s", "decode_s", "restart_s"), 0.0)
        self._before: dict[str, float] = {}  # of that, what was spent before the engine got it

    # ---- the engine ----

    def submit(self, number: int) -> link.Generate:
        """The engine gets it under this number."""
        self.id = number
        self._enter("queue_s")
        self._before = dict(self._spent)
        return replace(self.generate, id=number, said=self._said if self.has_spoken else [])

    def leave(self) -> None:
        """The engine does not have it any more."""
        self.id, self._last_place = 0, -1
        self._settle()

    def lose(self, n_restarts: int) -> None:
        """The engine has died."""
        self._enter("restart_s")
        self.leave()
        self.wait(Wait("restart", n_restarts))

    def deliver(self, message: link.Message) -> bool:
        """Never waits. True: it has got on, further than with any engine before."""
        got_on = True
        match message:
            case link.Tokens():
                self._enter("decode_s")
                said = self._said[message.choice]
                assert said is not None, "a choice that has ended says no more"
                said += message.tokens
                if self._is_heard(message):
                    return True
                self._n_unread += len(message.tokens)
                if self._n_unread >= MAX_AHEAD and not self.is_paused:
                    self.is_paused = True
                    self._roster.pause(self)
            case link.Progress():
                self._enter("prefill_s")
                n_read = min(message.n_done, len(self.generate.prompt))
                got_on = n_read > self._n_read
                self._n_read = max(n_read, self._n_read)
                if self._n_cached is None:
                    self._n_cached = message.n_cached
            case link.Finished():
                message = self._finished(message)
        self._add(message)
        return got_on

    def move(self, n_ahead: int) -> None:
        """So many requests will start before it."""
        if n_ahead != self._last_place:
            self._last_place = n_ahead
            self.wait(Wait("queue", n_ahead))

    def wait(self, what: Wait) -> None:
        self._wait = what
        self._news.set()

    def fail(self, error: LuceError) -> None:
        self._add(link.Failed(self.id, error.to_wire()))

    def describe(self) -> dict[str, Any]:
        """For a report of a fault: nothing of its text."""
        generate = self.generate
        sampling = dict(vars(generate.sampling))
        sampling["logit_bias"] = len(generate.sampling.logit_bias)
        return {
            "model": generate.model,
            "prompt": len(generate.prompt),
            "read": self._n_read,
            "generated": [None if said is None else len(said) for said in self._said],
            "max_tokens": generate.max_tokens,
            "stop_ids": len(generate.stop_ids),
            "pooling": generate.pooling,
            "sampling": sampling,
        }

    # ---- who asked ----

    def listen(self, hear: Callable[[link.Tokens], bool]) -> None:
        """Tokens are given to `hear` as they come, without a task that has to wake up for them. It must not wait;
        where it says False it has not heard, and they are received like the rest."""
        self._hear = hear

    async def receive(self) -> link.Message | Wait:
        """The next message, or what it waits for now."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._bug is not None:
                raise self._bug
            if self._messages:
                return self._take()
            if self._wait is not None:
                wait, self._wait = self._wait, None
                return wait
            self._news = trio.Event()
            await self._news.wait()

    def truncate(self, choice: int, n_tokens: int) -> None:
        self._cuts[choice] = n_tokens
        if self.id:
            self._roster.send(link.Truncate(self.id, choice, n_tokens))
        else:
            self._settle()

    def _take(self) -> link.Message:
        message = self._messages.popleft()
        if isinstance(message, link.Tokens):
            self._n_unread -= len(message.tokens)
            if self.is_paused and self._n_unread <= MAX_AHEAD // 2:
                self.is_paused = False
                if self.id:
                    self._roster.send(link.Resume(self.id))
        return message

    # ---- what is between them ----

    @property
    def has_spoken(self) -> bool:
        return any(said != [] for said in self._said)

    def _is_heard(self, tokens: link.Tokens) -> bool:
        if self._messages or self._hear is None:
            return False
        try:
            is_heard = self._hear(tokens)
        except Exception as bug:  # it is of this request, and nobody else shall suffer from it
            self._bug, self._hear = bug, None
            self._news.set()
            return True
        if is_heard:
            self._wait = None  # it is over
        return is_heard

    def _add(self, message: link.Message) -> None:
        self._messages.append(message)
        self._wait = None  # it is over
        self._news.set()

    def _settle(self) -> None:
        """Finishes the choices that are over, although the engine did not live to say so."""
        for choice, said in enumerate(self._said):
            if not said:
                continue
            n_generated = self._cuts.get(choice, len(said))
            if choice in self._cuts:
                reason = "truncated"
            elif said[-1] in self.generate.stop_ids:
                reason = "stop"
            elif len(said) == self.generate.max_tokens:
                reason = "length"
            else:
                continue
            usage = {"n_prompt": len(self.generate.prompt), "n_cached": 0, "n_generated": n_generated}
            self._before = dict(self._spent)
            end = link.Finished(
                self.id, choice, reason, usage | {"n_drafted": 0, "n_accepted": 0}, dict.fromkeys(self._spent, 0.0)
            )
            self._add(self._finished(end))

    def _finished(self, message: link.Finished) -> link.Finished:
        """With the time that it has spent before this engine, and what was cached when it first began."""
        self._said[message.choice] = None
        self.n_open -= 1
        timings = {name: message.timings.get(name, 0.0) + spent_s for name, spent_s in self._before.items()}
        usage = message.usage
        if self._before["restart_s"] and self._n_cached is not None:
            usage = usage | {"n_cached": self._n_cached}
        return replace(message, usage=usage, timings=timings)

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            now = trio.current_time()
            self._spent[self._phase] += now - self._since
            self._phase, self._since = phase, now
