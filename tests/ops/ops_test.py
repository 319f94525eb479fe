"""Every op against its meaning, on all that the machine has (harness.machines), from the table in cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from luced.device import abi
from luced.oracle import ORACLE
from tests.ops.cases import CASES
from tests.ops.harness import (
    WHOLE,
    Case,
    Placed,
    by_row,
    context,
    cut_rows,
    difference,
    machine_name,
    machines,
    outputs,
    run_kernel,
    run_oracle,
    runs,
)

MACHINES = list(machines())
RUNS = [(case, machine) for machine in MACHINES for case in CASES if runs(case, machine)]
CUT = [(case, machine) for case, machine in RUNS if case.cut and case.op not in WHOLE]


def _id(part: object) -> str:
    return str(part) if isinstance(part, Case) else machine_name(part)  # type: ignore[arg-type]


def _outputs(case: Case, args: dict[str, object]) -> list[str]:
    return [name for name in outputs(case.op) if args.get(name) is not None]


def _bytes(case: Case, placed: Placed) -> list[bytes]:
    return [placed.values[name].tobytes() for name in _outputs(case, placed.values)]


def test_every_op_of_the_contract_has_a_meaning_and_cases() -> None:
    assert set(ORACLE) == set(abi.OPS)
    assert {case.op for case in CASES} == set(abi.OPS) - {"mailbox"}  # which waits for a thread: library_test.py


@pytest.mark.parametrize(("case", "machine"), RUNS, ids=_id)
def test_op(case: Case, machine: abi.Isa | str) -> None:
    args = case.args()
    names = _outputs(case, args)
    want, got, again = Placed(args), Placed(args), Placed(args)
    assert run_oracle(case.op, want.values) == case.fault
    assert run_kernel(context(machine, 1), case.op, got.values) == case.fault
    for name in names:
        error = difference(got.values[name], want.values[name], case.bound)
        assert error <= 1, f"{name}: {error:.3g} times the bound"
    assert got.broken_guards(names) == 0
    # Two threads: the same bits.
    assert run_kernel(context(machine, 2), case.op, again.values) == case.fault
    assert _bytes(case, again) == _bytes(case, got)


@pytest.mark.parametrize(("case", "machine"), CUT, ids=_id)
def test_rows_alone_have_the_bits_they_have_in_company(case: Case, machine: abi.Isa | str) -> None:
    together, apart = Placed(case.args()), Placed(case.args())
    run_kernel(context(machine, 2), case.op, together.values)
    n: Any = together.values.get("n_rows")
    n = len(together.values[by_row(case.op)[0]]) if n is None else n
    # The first row alone, then growing chunks.
    begin, size = 0, 1
    while begin < n:
        end = min(begin + size, n)
        run_kernel(context(machine, 1 + size % 2), case.op, cut_rows(case, apart.values, begin, end))
        begin, size = end, size + 2
    assert _bytes(case, apart) == _bytes(case, together)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_percent_off_is_seen(case: Case) -> None:
    placed = Placed(case.args())
    run_oracle(case.op, placed.values)
    seen = []
    for name in _outputs(case, placed.values):
        want = placed.values[name]
        if want.dtype.names or want.dtype.kind != "f":
            continue  # compared exactly
        largest = np.unravel_index(np.argmax(np.where(np.isfinite(want), np.abs(want), -1)), want.shape)
        if want.dtype != np.float32 or not np.isfinite(want[largest]) or want[largest] == 0:
            continue
        got = want.copy()
        got[largest] *= np.float32(1.01)
        seen.append(difference(got, want, case.bound) > 1)
    assert all(seen)
