"""Which kernels of CUDA the tiny models would want that its library has not, as the tests of ops know it."""

from __future__ import annotations

from typing import Any

from luced.device.values import Call
from luced.engine.loader import record
from tests.models.cases import GOLDENS
from tests.ops.gpu import LACKING


class Paper:
    """A device on which a model can be recorded, and no more."""

    device_name = "paper"

    def __getattr__(self, _: str) -> Any:
        """packed_bytes, workspace_bytes: nothing."""
        return lambda *_: 0

    def free_bytes(self) -> int:
        return 1 << 40


def lacking(name: str) -> set[str]:
    """Of a case of cases.py; whether it lies in the type of the weights or in an op."""
    device: Any = Paper()
    runner = record(GOLDENS / f"{name}.gguf", device)
    try:
        wanted = {info.type for info in runner.weights.file.tensors.values()}
        for call in runner.tape.calls:
            wanted |= _kinds(call)
    finally:
        runner.close()
    return wanted & LACKING


def _kinds(call: Call) -> set[str]:
    """The op, and what cases of it begin with where it is given more than is common."""
    kinds = {call.op}
    if call.op == "attention":
        kinds |= {kind for kind, arg in (("lse", "lse"), ("chosen", "cells")) if call.args[arg] is not None}
    if call.op == "glu" and call.args["limit"]:
        kinds.add("glu-silu-limit")
    return kinds
