"""One request of a connection, as its handler sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from luce import wire
from luce.errors import LuceError

if TYPE_CHECKING:
    from luced.front.daemon import Daemon
    from luced.front.session import Session


@dataclass(eq=False)
class Call:
    """`params` are checked and complete when the handler gets them; `given` are those that the caller gave."""

    session: Session
    id: int
    method: str
    params: dict[str, Any]
    n_bytes: int = 0  # of its frame
    started_at: float = field(default_factory=time.monotonic)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_ended: bool = False  # its response may still wait to be sent
    error: LuceError | None = None  # why it was ended
    model: str = ""  # who answers, once that is known
    limit_s: float = 0.0  # that it may take; 0: as long as it likes
    done: dict[str, Any] = field(default_factory=dict)  # how far it is: phase, and counts of tokens

    def __post_init__(self) -> None:
        self.given = frozenset(name for name, value in self.params.items() if value is not None)

    @property
    def daemon(self) -> Daemon:
        return self.session.daemon

    @property
    def name(self) -> str:
        """For the log."""
        return f"{self.session.number}/{self.id}"

    def end(self, error: LuceError) -> None:
        """Wherever it is, it stops; `error` is its response. The first one counts."""
        self.error = self.error or error
        self.scope.cancel()

    def limit(self, deadline_s: float | None) -> None:
        """It ends so many seconds after its arrival, or earlier if the configuration says so."""
        limits = [limit_s for limit_s in (deadline_s, self.daemon.config.deadline_s) if limit_s]
        if limits:
            self.limit_s = min(limits)
            self.scope.deadline = trio.current_time() + self.limit_s - self.age_s

    @property
    def is_late(self) -> bool:
        return trio.current_time() >= self.scope.deadline

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started_at

    async def tell_loading(self, done: int, total: int) -> None:
        """Bytes of the model."""
        await self.notify("progress", phase="load", done=done, total=total, cached=0)

    def notification(self, name: str, **fields: Any) -> bytes:
        return wire.notification(name, {"id": self.id, **fields})

    async def notify(self, name: str, **fields: Any) -> None:
        """Waits while the client reads more slowly than we write."""
        await self.session.send(self.notification(name, **fields))
