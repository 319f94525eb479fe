"""The end of an engine that nobody asked for, and how many in a row somebody has met with."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from luced.errors import EngineError
from luced.front.child import describe_exit

# What a process dies of by its own doing; other signals come from outside, that of the OOM killer too.
OWN_SIGNALS = {
    signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS
}  # fmt: skip
MAX_KILLS = 10  # in a row, from outside
N_SHOWN = 3  # of its last lines, in an error


@dataclass(frozen=True)
class Death:
    """`status` is the exit status; negative: a signal; None: it could not be started. `last_lines`: of its output, or
    why it could not be started."""

    status: int | None
    was_ready: bool
    last_lines: tuple[str, ...] = ()

    @property
    def is_fault(self) -> bool:
        """It died of what it did. Who finds the device lost exits with a status."""
        return self.status is None or self.status >= 0 or -self.status in OWN_SIGNALS

    @property
    def cause(self) -> str:
        words = " | ".join(self.last_lines[-N_SHOWN:])
        if self.status is None:
            return f"cannot be started: {words}"
        how = describe_exit(self.status)
        return how if self.was_ready or not words else f"{how} before it was ready; it said: {words}"

    def error(self, n_deaths: int = 1) -> EngineError:
        """What those get who are given up after so many in a row."""
        in_a_row = f", {n_deaths} times in a row" if n_deaths > 1 else ""
        remedy = "`luced doctor` and the daemon's log may say why; then ask again"
        if self.status == -signal.SIGKILL:
            remedy = "if the kernel's log says that memory ran out, use a smaller model or context; then ask again"
        return EngineError("engine_failed", f"the engine {self.cause}{in_a_row}", remedy)


@dataclass
class Deaths:
    """In a row: without a start, a load or any progress between them. `n_kills`: those that came from outside."""

    n_faults: int = 0
    n_kills: int = 0

    @property
    def n(self) -> int:
        return self.n_faults + self.n_kills

    def count(self, death: Death) -> None:
        self.n_faults += death.is_fault
        self.n_kills += not death.is_fault

    def forget(self) -> None:
        self.n_faults = self.n_kills = 0
