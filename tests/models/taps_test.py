"""What every matrix and norm of a tiny model is given is what HF gives it: where logits differ, this names the first
that errs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from luced.device.values import Value
from luced.engine.offline import chunk_of, plan_of, resident, sequence_of
from luced.engine.runner import Runner
from tests import hfgguf
from tests.models.cases import CASES, Case, make, tokens

torch = pytest.importorskip("torch")
Taps = dict[str, NDArray[Any]]
READERS = ("rms_norm", "matmul", "expert_matmul")
# Quantised weights meet int8 activations, HF's meet F32.
EXACT = [name for name, case in CASES.items() if case.dtype in ("F32", "F16", "BF16")]
REORDERED = ("ssm_norm", "ssm_out", "ssm_conv1d")  # value heads come to these in the converter's order


def taps(runner: Runner, ids: list[int]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Each weight that rows are normed by or multiplied with, and those that come to it, [n, K]; at last `hidden`, the
    output of the last norm."""
    runner.arrays.fill(plan_of(chunk_of(runner, sequence_of(runner, ids), 0, len(ids))))
    assert runner.hidden is not None
    for call in runner.tape.calls[: runner.n_hidden]:
        weight, x = call.args.get("weight"), call.args.get("x")
        if call.op in READERS and isinstance(weight, Value) and isinstance(x, Value) and x.type == "F32":
            yield weight.name, _rows(runner, x)
        runner.device.compile([call]).run()
    yield "hidden", _rows(runner, runner.hidden)


def _rows(runner: Runner, x: Value) -> NDArray[np.float32]:
    assert x.rows is not None
    n = runner.device.view(x.rows.counter)[0]
    return np.array(runner.device.view(x)[:n]).reshape(n, -1)


def hf_taps(model: Any, case: Case) -> Taps:
    """What modules with a weight are given in HF, by its GGUF name; of experts, which are one module, nothing."""
    found: Taps = {}
    for name, module in model.model.named_modules(prefix="model"):
        if module._parameters.get("weight") is None or isinstance(module, torch.nn.Embedding):
            continue
        weight = hfgguf.gguf_name(f"{name}.weight", case.architecture)
        if not any(one in weight for one in REORDERED):
            module.register_forward_pre_hook(lambda _, given, weight=weight: found.update({weight: given[0].numpy()}))
    with torch.no_grad():
        hidden = model.model(torch.tensor([tokens(case)]), use_cache=False).last_hidden_state
    return found | {"hidden": hidden.numpy()}


def flat(x: NDArray[Any], n: int) -> NDArray[Any]:
    """HF's [n, ...], [1, n, ...] or [1, H, n, D] as [n, K]."""
    if len(x) != n:
        x = x[0] if x.shape[1] == n else x[0].swapaxes(0, 1)
    return x.reshape(n, -1)


@pytest.mark.parametrize("name", EXACT)
def test_every_weight_is_given_what_hf_gives_it(name: str, tmp_path: Path) -> None:
    case, ids = CASES[name], tokens(CASES[name])
    model = make(case)
    path = hfgguf.export(model, tmp_path / "m.gguf", case.dtype, n_mtp=case.n_mtp)
    expected = hf_taps(model, case)
    with resident(path, kv_type="f32", n_batch=len(ids)) as runner:
        for weight, ours in taps(runner, ids):
            if weight in expected:
                theirs = flat(expected.pop(weight), len(ours))
                error = np.abs(ours - theirs).max() / np.abs(theirs).max()
                assert error <= case.tolerance, f"at {weight}: {error:.2e}"
    assert not expected, "weights that we never come to"
