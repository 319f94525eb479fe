"""Who waits for a model or for its turn, how many may, and when it is worth to ask again."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING

from luced.errors import RequestError

if TYPE_CHECKING:
    from luced.front.call import Call

N_MEASURED = 64  # places that got free last: they give the rate
LEAST_S, MOST_S = 0.1, 60.0  # of retry_after_s


class Queue:
    """The calls that have not begun to compute."""

    def __init__(self, max_calls: int, max_of_user: int) -> None:
        self.max_calls = max_calls
        self.max_of_user = max_of_user
        self._waiting: dict[Call, float] = {}  # since when
        self._freed: collections.deque[float] = collections.deque(maxlen=N_MEASURED)

    def enter(self, call: Call) -> None:
        """RequestError (busy): there are as many as may be."""
        uid = call.session.peer.uid
        n_of_user = sum(other.session.peer.uid == uid for other in self._waiting)
        if len(self._waiting) >= self.max_calls:
            raise self._busy("queue", self.max_calls, "requests are waiting")
        if n_of_user >= self.max_of_user:
            raise self._busy("queue_of_user", self.max_of_user, f"requests of uid {uid} are waiting")
        if not self._waiting:
            self._freed.clear()  # the rate is that of a busy time
        self._waiting[call] = time.monotonic()

    def leave(self, call: Call) -> None:
        """It has begun, or ended. Nothing if it had left."""
        if self._waiting.pop(call, None) is not None:
            self._freed.append(time.monotonic())

    def retry_after_s(self) -> float:
        """How long a place has taken to get free lately; before one has, how long somebody has waited for that."""
        now = time.monotonic()
        if self._freed:
            interval_s = (now - self._freed[0]) / len(self._freed)
        else:
            interval_s = now - min(self._waiting.values(), default=now)
        return round(min(max(interval_s, LEAST_S), MOST_S), 3)

    def _busy(self, limit: str, value: int, what: str) -> RequestError:
        return RequestError("busy", f"{value} {what}", limit=limit, value=value, retry_after_s=self.retry_after_s())
