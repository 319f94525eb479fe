"""Two readings of one tape side by side: the first value that differs names the guilty op."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from luced.device.values import Storage, Value
from luced.engine.runner import Runner
from luced.tape import Array, Tape


@dataclass(frozen=True)
class Difference:
    name: str  # of the value
    op: str
    max_error: float  # over the largest magnitude of the value


def memory(storage: Storage) -> Array:
    """The bytes of a storage that a CPU device has placed; a copy, so that interpreting changes nothing."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * storage.n_bytes).from_address(storage.pointer)).copy()


def differences(runner: Runner, tape: Tape) -> list[Difference]:
    """How far each F32 value of the device is from the oracle's, in the order of the tape. Inputs must be filled."""
    expected = tape.interpret(memory)
    n_rows = {call.rows: int(runner.device.view(call.rows.counter)[0]) for call in tape.calls if call.rows}
    found = []
    for call in tape.calls:
        runner.device.compile([call]).run()
        for out in call.outs:
            value = call.args[out]
            if not isinstance(value, Value) or value.type != "F32":
                continue
            n = n_rows[call.rows] if call.rows else None
            got, want = runner.device.view(value)[:n], expected[value.name][:n]
            finite = np.isfinite(want)
            got_finite, want_finite = got[finite], want[finite]
            scale = float(np.max(np.abs(want_finite), initial=1e-30))
            error = float(np.max(np.abs(got_finite - want_finite), initial=0)) / scale
            same_rest = np.array_equal(got[~finite], want[~finite], equal_nan=True)
            found.append(Difference(value.name, call.op, error if same_rest else float("inf")))
    return found
