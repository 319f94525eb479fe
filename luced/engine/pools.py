"""What a cache is on the device: pages of keys and values for each group of layers, slots of recurrent states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
) -> dict[str, dict[int, ops.Cache]]:
    """By group, in their order, and layer."""
    found: dict[str, dict[int, ops.Cache]] = {group.name: {} for group in s.groups}
    k_type, v_type = kv_types(kv_type)
    for group, spec, g in zip(s.groups, specs, group_inputs, strict=True):
        e = g.entries
        entries = ops.Entries(e.ratio, e.seq, e.first, e.last) if e else None
        sizes = page_size // group.ratio, group.n_head_kv, spec.n_pages
        for layer in group.layers:
            name = f"{group.name}.blk.{layer}"
            v = k = make_value(f"{name}.k_pages", "cache", group.kept or k_type, group.head_dim, *sizes)
            if group.head_dim_v:
                v = make_value(f"{name}.v_pages", "cache", group.kept or v_type, group.head_dim_v, *sizes)
            found[group.name][layer] = ops.Cache(
                k, v, g.cell_pos, g.page_table, g.slots, i.row_seq, i.positions, e.row_cell if e else i.row_cell,
                group.window, entries,
            )  # fmt: skip
    return found


def by_layer(s: Spec, found: Mapping[str, Mapping[int, ops.Cache]]) -> dict[int, ops.Cache]:
    """The cache that each attending layer sees, of its first group; layers that share keys and values share a cache."""
    first = {layer: cache for group in reversed(list(found.values())) for layer, cache in group.items()}
    return {layer: first[lender] for layer, lender in s.lenders.items()} if s.lenders else first


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
