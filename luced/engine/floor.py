"""The floor of a step: the bytes that it must move, whoever computes it."""

from __future__ import annotations

from luced.device.values import BLOCKS
from luced.engine.plan import kv_types
from luced.engine.runner import Runner
from luced.models.spec import Group

LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight")  # tables of which a token reads a row


def step_bytes(runner: Runner, n_rows: int, depth: int) -> int:
    """Bytes that a step of one row of each of n_rows sequences moves at least, with `depth` tokens before each:
    weights once, keys and values that the rows see, recurrent states read and written.

    Weights as in the file; of experts as many as one row chooses, since all rows may choose the same.
    """
    cells = sum(_seen_bytes(runner, group, depth + 1) for group in runner.spec.groups)
    states = runner.spec.recurrent.state_bytes if runner.spec.recurrent else 0
    return _weight_bytes(runner) + n_rows * (cells + 2 * states)


def _weight_bytes(runner: Runner) -> int:
    tensors = runner.weights.file.tensors
    looked_up = [name for name in LOOKED_UP if name != "token_embd.weight" or "output.weight" in tensors]
    total = 0
    for name, tensor in tensors.items():
        if name in looked_up or (name.startswith("blk.") and int(name.split(".")[1]) >= runner.spec.n_layer):
            continue
        routing = runner.spec.routing
        is_of_experts = routing is not None and len(tensor.dims) == 3
        total += tensor.n_bytes * routing.n_used // tensor.dims[2] if routing and is_of_experts else tensor.n_bytes
    return total


def _seen_bytes(runner: Runner, group: Group, n_tokens: int) -> int:
    """Of the cells, in all layers of the group, that a row sees whose sequence has n_tokens."""
    k_type, v_type = kv_types(runner.kv_type)
    values = (group.head_dim, group.kept or k_type), (group.head_dim_v, group.kept or v_type)
    cell_bytes = sum(n // BLOCKS[kept][0] * BLOCKS[kept][1] for n, kept in values)
    n_cells = min(n_tokens, group.window or n_tokens) // group.ratio
    return n_cells * len(group.layers) * group.n_head_kv * cell_bytes
