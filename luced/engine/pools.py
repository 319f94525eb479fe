"""What a cache is on the device: pages of keys and values for each group of layers, slots of recurrent states."""

from __future__ import annotations

from collections.abc import Sequence

from luced import ops
from luced.device.values import Value, make_value
from luced.engine.inputs import GroupInputs, Inputs, StateInputs
from luced.engine.plan import GroupSpec, kv_types
from luced.models.spec import Spec


def caches(
    s: Spec,
    specs: Sequence[GroupSpec],
    group_inputs: Sequence[GroupInputs],
    i: Inputs,
    page_size: int,
    kv_type: str,
) -> dict[int, ops.Cache]:
    """By attending layer; layers that share keys and values share a cache."""
    found: dict[int, ops.Cache] = {}
    k_type, v_type = kv_types(kv_type)
    for group, spec, g in zip(s.groups, specs, group_inputs, strict=True):
        pages = ("k_pages", k_type, group.head_dim), ("v_pages", v_type, group.head_dim_v)
        for layer in group.layers:
            k, v = (
                make_value(f"blk.{layer}.{name}", "cache", kept, d, page_size, group.n_head_kv, spec.n_pages)
                for name, kept, d in pages
            )
            found[layer] = ops.Cache(
                k, v, g.cell_pos, g.page_table, g.slots, i.row_seq, i.positions, i.row_cell, group.window
            )  # fmt: skip
    return {layer: found[lender] for layer, lender in s.lenders.items()} if s.lenders else found


def states(s: Spec, state_inputs: StateInputs | None, i: Inputs, n_states: int) -> dict[int, ops.State]:
    """By recurrent layer."""
    r = s.recurrent
    if r is None or state_inputs is None:
        return {}

    def cache(name: str, *ne: int) -> Value:
        return make_value(name, "cache", "F32", *ne, n_states)

    return {
        layer: ops.State(
            cache(f"blk.{layer}.conv_state", r.n_channels, r.n_taps - 1),
            cache(f"blk.{layer}.delta_state", r.d_v, r.d_k, r.n_v),
            i.row_seq,
            state_inputs.seq_slot,
            state_inputs.out_slots,
        )
        for layer in r.layers
    }
