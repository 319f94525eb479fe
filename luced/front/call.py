"""One request of a connection, as its handler sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from luce import wire

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
    started_at: float = field(default_factory=time.monotonic)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_ended: bool = False  # its response may still wait to be sent

    def __post_init__(self) -> None:
        self.given = frozenset(name for name, value in self.params.items() if value is not None)

    @property
    def daemon(self) -> Daemon:
        return self.session.daemon

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started_at

    async def notify(self, name: str, **fields: Any) -> None:
        """Waits while the client reads more slowly than we write."""
        await self.session.send(wire.notification(name, {"id": self.id, **fields}))
