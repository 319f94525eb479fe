"""One function per op of kernels/include/luce.h: check shapes, claim the output, append the call.

Every function takes the tape first and gives the value that the op computes. Shapes in ggml order; n is the ragged
dimension, whose bound and counter come with the first value (`Value.rows`).
"""

from luced.ops.cache import Cache, attend, attention, kv_copy, kv_write
from luced.ops.dense import (
    GELU_TANH,
    ROPE_NEOX,
    ROPE_NORM,
    SILU,
    add,
    embed,
    gate,
    gated_norm,
    glu,
    l2_norm,
    matmul,
    rms_norm,
    rope,
    rope_angles,
    rows_of,
    scale,
    softcap,
)
from luced.ops.experts import Chosen, Gating, Routing, combine, expert_matmul, route
from luced.ops.recurrent import HEADS_GROUPED, HEADS_TILED, State, conv, delta
from luced.ops.sampling import Drawn, advance, count, sample
from luced.ops.weight import FLOAT_TYPES, Weight

__all__ = [
    "FLOAT_TYPES",
    "GELU_TANH",
    "HEADS_GROUPED",
    "HEADS_TILED",
    "ROPE_NEOX",
    "ROPE_NORM",
    "SILU",
    "Cache",
    "Chosen",
    "Drawn",
    "Gating",
    "Routing",
    "State",
    "Weight",
    "add",
    "advance",
    "attend",
    "attention",
    "combine",
    "conv",
    "count",
    "delta",
    "embed",
    "expert_matmul",
    "gate",
    "gated_norm",
    "glu",
    "kv_copy",
    "kv_write",
    "l2_norm",
    "matmul",
    "rms_norm",
    "rope",
    "rope_angles",
    "route",
    "rows_of",
    "sample",
    "scale",
    "softcap",
]
