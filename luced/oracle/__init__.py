"""The meaning of every op of luce.h in numpy: what tests hold the kernels to, and what Tape.interpret() runs.

Each is a function of its name in one of the modules here. ORACLE[op](args) reads and writes the arrays of `args`: for
each luce_tensor of the op's struct a view as blocks.view() gives it (None when absent), each scalar by its name, and
n_rows as an int (the true count). Rows beyond n_rows stay as they were. It returns a luce_fault_code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luced.device.abi import OPS
from luced.oracle import cache, compressed, dense, experts, hyper, sampling, state
from luced.oracle.blocks import view

ORACLE: dict[str, Callable[[Any], int]] = {
    op: vars(module)[op]
    for module in (dense, experts, hyper, cache, compressed, state, sampling)
    for op in OPS
    if op in vars(module)
}

__all__ = ["ORACLE", "view"]
