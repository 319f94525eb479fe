"""A device that fails as it is told to: for tests of what luced does about it. No option of a user leads here."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

from luced.device.abi import FaultCode
from luced.device.cpu import Array, Cpu, Program
from luced.device.values import Call, Value
from luced.errors import EngineError

SIGNALS = {
    "segv": signal.SIGSEGV,
    "abort": signal.SIGABRT,
    "bus": signal.SIGBUS,
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,  # until SIGCONT; then it goes on as if nothing had been
}


class Fault(NamedTuple):
    """What happens, and when. A step is a run of a program that reads tokens.

    how: a signal by its name; `word`: the step ends with a fault word; `lost`: this and every later use of the device
    fails, as after a suspend or when its driver was loaded anew.
    """

    how: str
    step: int = 0  # the number of the step, from 1; 0: any
    token: int = -1  # a step that reads this token; -1: any


class Faulty:
    """Does what `device` does, until the fault."""

    def __init__(self, device: Cpu, fault: Fault) -> None:
        self.is_lost = False
        self._device = device
        self._fault = fault
        self._n_steps = 0

    def __getattr__(self, name: str) -> Any:
        if name != "close":
            self.check()
        return getattr(self._device, name)

    def compile(self, calls: list[Call], outputs: Sequence[Value] = ()) -> FaultyProgram:
        self.check()
        reads = None
        for call in calls:
            ids = call.args.get("ids")
            if call.op == "embed" and isinstance(ids, Value) and call.rows is not None:
                reads = self._device.view(ids), self._device.view(call.rows.counter)
        return FaultyProgram(self, self._device.compile(calls, outputs), reads)

    def check(self) -> None:
        """EngineError: it is lost."""
        if self.is_lost:
            raise EngineError("engine_failed", "the device is lost")

    def begin(self, tokens: list[int]) -> bool:
        """A step begins. True: it will end with a fault word."""
        self._n_steps += 1
        fault = self._fault
        if fault.step not in (0, self._n_steps) or (fault.token >= 0 and fault.token not in tokens):
            return False
        if fault.how in SIGNALS:
            os.kill(os.getpid(), SIGNALS[fault.how])
        self.is_lost = fault.how == "lost"
        return fault.how == "word"


class FaultyProgram:
    """`reads`: where its tokens are and how many of them, if it reads any."""

    def __init__(self, device: Faulty, program: Program, reads: tuple[Array, Array] | None) -> None:
        self._device = device
        self._program = program
        self._reads = reads
        self._has_faulted = False

    def start(self) -> None:
        if self._reads is not None:
            tokens, count = self._reads
            if count[0]:
                self._has_faulted = self._device.begin(tokens[: count[0]].tolist())
        self._device.check()
        self._program.start()

    def read(self) -> list[Array]:
        self._device.check()
        return self._program.read()

    def run(self) -> list[Array]:
        self.start()
        return self.read()

    def take_fault(self) -> FaultCode:
        self._device.check()
        fault = self._program.take_fault()
        return FaultCode.PAGE if self._has_faulted else fault
