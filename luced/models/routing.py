"""How rows choose their experts, as the metadata asks for it."""

from __future__ import annotations

from luced.gguf.metadata import Metadata
from luced.ops import Gating, Routing

FLOOR = 2.0**-14  # below it a sum of weights is not divided by, as in llama.cpp


def read_routing(m: Metadata, arch: str, *, gating: Gating = Gating.SOFTMAX, normed: bool = False) -> Routing | None:
    """None: the model has no experts. `gating` and `normed` hold where the file does not say."""
    n_expert = m.count(f"{arch}.expert_count", 0)
    n_used = m.count(f"{arch}.expert_used_count", 0)
    n_groups = m.count(f"{arch}.expert_group_count", 0)
    n_groups_used = m.count(f"{arch}.expert_group_used_count", n_groups)
    kind = m.count(f"{arch}.expert_gating_func", 0) or gating
    scale = m.float(f"{arch}.expert_weights_scale", 0.0)
    normed = m.bool(f"{arch}.expert_weights_norm", normed)
    for size in ("expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_shared_count"):
        m.get(f"{arch}.{size}")  # the shapes of the weights say it
    if n_expert == 0:
        return None
    if not 0 < n_used <= n_expert:
        raise m.bad(f"{n_used} of {n_expert} experts")
    if kind not in set(Gating):
        raise m.bad(f"expert_gating_func is {kind}")
    if n_groups > 1 and (n_expert % n_groups or not 0 < n_groups_used <= n_groups):
        raise m.bad(f"{n_groups_used} of {n_groups} groups of {n_expert} experts")
    return Routing(n_used, kind, n_groups, n_groups_used, FLOOR if normed else 0.0, scale or 1.0)


def must_route(m: Metadata, arch: str) -> Routing:
    """Of an architecture all of whose models have experts; their weights add up to 1 where the file does not say."""
    routing = read_routing(m, arch, normed=True)
    if routing is None:
        raise m.bad(f"{arch} without experts")
    return routing
