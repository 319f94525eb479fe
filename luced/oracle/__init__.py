"""The meaning of every op of luce.h in numpy: what tests hold the kernels to, and what Tape.interpret() runs.

ORACLE[op](args) reads and writes the arrays of `args`: for each luce_tensor of the op's struct a view as blocks.view()
gives it (None when absent), each scalar by its name, and n_rows as an int (the true count). Rows beyond n_rows stay as
they were. It returns a luce_fault_code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luced.oracle.blocks import view
from luced.oracle.cache import attention, kv_copy, kv_write
from luced.oracle.dense import add, embed, glu, matmul, quantize, rms_norm, rope, rope_angles, rows, softcap
from luced.oracle.sampling import advance, count, mailbox, sample

ORACLE: dict[str, Callable[[Any], int]] = {
    "embed": embed,
    "quantize": quantize,
    "matmul": matmul,
    "rms_norm": rms_norm,
    "add": add,
    "glu": glu,
    "softcap": softcap,
    "rope_angles": rope_angles,
    "rope": rope,
    "kv_write": kv_write,
    "kv_copy": kv_copy,
    "attention": attention,
    "rows": rows,
    "count": count,
    "sample": sample,
    "advance": advance,
    "mailbox": mailbox,
}

__all__ = ["ORACLE", "view"]
