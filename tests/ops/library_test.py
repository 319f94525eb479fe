"""What a kernel library refuses, and how it says so; mailboxes; pages in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luced.device import abi
from luced.device.library import Calls, Context
from luced.errors import EngineError, ModelError
from tests.ops.attention_cases import Shape
from tests.ops.cases import CASES
from tests.ops.harness import Placed, isas, kernel_args, run_kernel, tensor


@pytest.fixture
def context() -> Any:
    with Context(n_threads=2) as context:
        yield context


def _args(name: str, **changes: Any) -> dict[str, Any]:
    args: dict[str, Any] = next(case for case in CASES if str(case) == name).args()
    return args | changes


F16 = np.zeros((5, 37), np.float16)


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("rms_norm", _args("rms_norm-odd", x=F16), "rms_norm: x and out are F32"),
        ("add", _args("add-odd", b=F16), "add: all tensors are F32"),
        ("glu", _args("glu-silu-odd", activation=7), "glu: activation"),
        ("rope", _args("rope-norm-odd", mode=2), "rope: mode"),
        ("rows", _args("rows-some", x=F16), "rows: x and out are F32"),
        ("kv_write", _args("kv_write-f16-odd", k_pages=np.zeros((3, 3, 16, 24), np.int32)), "kv_write: pages are"),
        ("attention", _args("attention-first-token", q=F16), "attention: q and out are F32"),
        ("attention", Shape(((0, 1),), page_size=1024, d=512, dv=512)(np.random.default_rng(0)), "attention: a page"),
        ("sample", _args("sample-greedy", rows=np.zeros(5, "V72")), "sample: rows are luce_sample_row"),
        ("advance", _args("advance-each", state=np.zeros(6, "V20")), "advance: state is luce_row_state"),
    ],
)
def test_what_has_no_kernel_is_refused(context: Context, op: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        run_kernel(context, op, args)
    assert error.value.name == "unsupported_model"


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("rms_norm", _args("rms_norm-odd", weight=np.zeros(36, np.float32)), "rms_norm: weight has D values"),
        ("softcap", _args("softcap-bent", cap=0.0), "softcap: cap is positive"),
        ("rope", _args("rope-norm-odd", angles=np.zeros((5, 28), np.float32)), "rope: n_rot is even and at most D"),
        ("attention", _args("attention-first-token", row_pos=np.zeros(2, np.int32)), "attention: row_"),
        ("count", _args("count-some", amount=np.zeros(2, np.int32)), "count: slots, tokens and amount"),
        ("kv_copy", _args("kv_copy-f16", copies=np.zeros((2, 2), np.int32)), "kv_copy: a copy is"),
    ],
)
def test_shapes_that_disagree_are_a_bug_of_ours(context: Context, op: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message) as error:
        run_kernel(context, op, args)
    assert error.value.name == "internal"


@pytest.mark.parametrize("name", ["attention-f16-decode", "sample-greedy"])
def test_a_workspace_that_is_too_small(context: Context, name: str) -> None:
    op = name.partition("-")[0]
    struct, _ = kernel_args(op, Placed(_args(name)).values)
    with pytest.raises(EngineError, match=f"call 0: {op}: workspace is too small"):
        context.run(Calls([(abi.Op[op.upper()], struct)]))


def test_a_library_that_is_not_there() -> None:
    with pytest.raises(ModelError, match=r"libluce_nowhere.so.* is not built") as error:
        Context(path=Path("libluce_nowhere.so"))
    assert error.value.name == "no_device"


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ModelError, match="there is no device 5"):
        Context(device=5)


@pytest.mark.parametrize("isa", list(isas()), ids=lambda isa: isa.name.lower())
def test_pages_may_lie_anywhere(isa: abi.Isa) -> None:
    """A restored cache has its pages elsewhere; the bits are the same."""
    args = Shape(((150, 9), (40, 1)))(np.random.default_rng(1))
    n_pages = len(args["cell_pos"])
    order = np.random.default_rng(2).permutation(n_pages)
    moved = {name: np.ascontiguousarray(args[name][order]) for name in ("k_pages", "v_pages", "cell_pos")}
    table = args["page_table"]
    known = (table >= 0) & (table < n_pages)
    moved["page_table"] = np.where(known, np.argsort(order)[np.where(known, table, 0)], table).astype(np.int32)
    there, elsewhere = Placed(args), Placed(args | moved)
    with Context(isa, 2) as context:
        run_kernel(context, "attention", there.values)
        run_kernel(context, "attention", elsewhere.values)
    assert there.values["out"].tobytes() == elsewhere.values["out"].tobytes()


@pytest.mark.parametrize("isa", list(isas()), ids=lambda isa: isa.name.lower())
def test_few_rows_on_many_threads(isa: abi.Isa) -> None:
    """Rows whose blocks of pages are shared out have the bits of rows that one thread does."""
    shape = Shape(((600, 2), (1000, 1)), heads=6, kv_heads=2, sinks=True)
    args = shape(np.random.default_rng(3))
    outputs = set()
    for n_threads in (1, 2, 3, 8):
        placed = Placed(args)
        with Context(isa, n_threads) as context:
            run_kernel(context, "attention", placed.values)
        outputs.add(placed.values["out"].tobytes())
    assert len(outputs) == 1


def test_draws_are_the_same_at_every_instruction_set() -> None:
    drawn = set()
    for isa in isas():
        placed = Placed(_args("sample-plain"))
        with Context(isa, 1) as context:
            run_kernel(context, "sample", placed.values)
        drawn.add(placed.values["token"].tobytes())
    assert len(drawn) == 1


def _mailbox(timeout_s: float) -> tuple[np.ndarray[Any, Any], Calls, list[Any]]:
    box = np.zeros(2, np.int32)
    struct, keep = kernel_args("mailbox", {"box": box, "timeout_s": timeout_s})
    return box, Calls([(abi.Op.MAILBOX, struct)]), keep


def test_a_mailbox_is_answered(context: Context) -> None:
    box, asks, _ = _mailbox(timeout_s=30.0)
    x = np.ones((1, 40), np.float32)
    struct, _ = kernel_args("add", {"a": x, "b": x, "out": x})
    with Context(n_threads=1) as host:
        work = Calls([(abi.Op.ADD, struct)])
        host.serve_mailbox(box.ctypes.data, work)
        for _ in range(3):
            context.run(asks)
        host.stop_mailbox(box.ctypes.data)
    assert context.take_fault() == abi.FaultCode.NONE
    assert box.tolist() == [3, 3]
    assert (x == 8).all()


def test_a_mailbox_that_nobody_serves_is_a_fault(context: Context) -> None:
    box, asks, _ = _mailbox(timeout_s=0.01)
    context.run(asks)
    assert context.take_fault() == abi.FaultCode.MAILBOX
    assert context.take_fault() == abi.FaultCode.NONE
    assert box.tolist() == [1, 0]


def test_a_tensor_has_the_strides_of_its_array() -> None:
    a = np.zeros((3, 4, 10), np.float32)[:, 1:3, :7]
    seen = tensor(a)
    assert (list(seen.ne), list(seen.nb)) == ([7, 2, 3, 1], [4, 40, 160, 480])
