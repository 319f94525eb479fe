"""A context: how it is opened, what it refuses, and how it runs a list of ops."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luced.device import abi
from luced.device.library import Calls, Context
from luced.errors import EngineError, ModelError
from tests.ops.harness import Array, isas, kernel_args


def _add(a: Array, out: Array) -> tuple[abi.Op, Any]:
    struct, _ = kernel_args("add", {"a": a, "b": a, "out": out})
    return abi.Op.ADD, struct


def test_opens_on_every_core_that_it_may_use() -> None:
    with Context() as context:
        info = context.info()
        assert info.n_threads == len(os.sched_getaffinity(0))
        assert info.isa == max(isas())
        assert info.name


@pytest.mark.parametrize("isa", list(isas()), ids=lambda isa: isa.name.lower())
def test_instruction_set_is_forced(isa: abi.Isa) -> None:
    with Context(isa, 1) as context:
        assert context.info().isa == isa


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no device 3"):
        Context(device=3)
    with pytest.raises(EngineError, match="out of range"):
        Context(n_threads=-1)
    with pytest.raises(ModelError, match="is not built"):
        Context(path=tmp_path / "none.so")


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_threads_end_with_their_context() -> None:
    before = threads()
    for _ in range(20):
        with Context(n_threads=5):
            new = threads() - before
            assert len(new) == 4
        end = time.monotonic() + 60
        while new & threads():  # the kernel takes a while to bury a thread that has been joined
            assert time.monotonic() < end


def test_ops_run_in_order_and_see_each_other() -> None:
    x = np.ones((33, 65), np.float32)
    with Context(n_threads=5) as context:
        context.run(Calls([_add(x, x)] * 20))  # each doubles x
    assert (x == 2.0**20).all()


def test_no_op_runs_when_one_cannot() -> None:
    x, short = np.ones((2, 8), np.float32), np.ones((2, 7), np.float32)
    with Context(n_threads=2) as context:
        with pytest.raises(EngineError, match="call 1: add: "):
            context.run(Calls([_add(x, x), _add(x, short)]))
        assert (x == 1).all()
        context.run(Calls([_add(x, x)]))
        assert (x == 2).all()


def test_unknown_op_is_refused() -> None:
    with Context(n_threads=1) as context:
        calls = Calls([_add(np.ones((1, 4), np.float32), np.ones((1, 4), np.float32))])
        calls.array[0].op = len(abi.OPS)
        with pytest.raises(EngineError, match=f"call 0: there is no op {len(abi.OPS)}"):
            context.run(calls)


def test_first_fault_is_kept_until_taken() -> None:
    weight, out = np.ones((4, 8), np.float32), np.ones((1, 8), np.float32)
    bad_id, bad_row = np.array([4], np.int32), np.array([9], np.int32)
    embed, keep = kernel_args("embed", {"weight": weight, "ids": bad_id, "out": out, "scale": 1.0})
    rows, _ = kernel_args("rows", {"x": weight, "index": bad_row, "out": out})
    with Context(n_threads=1) as context:
        context.run(Calls([(abi.Op.EMBED, embed), (abi.Op.ROWS, rows)]))
        assert context.take_fault() == abi.FaultCode.TOKEN
        assert context.take_fault() == abi.FaultCode.NONE
    assert (out == 0).all()
    del keep
