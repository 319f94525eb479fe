"""What the architectures share, as functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luced.device.values import ShapeError, Value
from luced.models.rope import Rope
from luced.models.spec import Spec
from luced.models.weights import Block, Weights
from luced.ops import (
    Cache,
    Chosen,
    Routing,
    State,
    Weight,
    combine,
    expert_matmul,
    glu,
    matmul,
    rms_norm,
    rope_angles,
    route,
    rows_of,
    scale,
    softcap,
)
from luced.tape import Tape, constant


@dataclass(frozen=True)
class Batch:
    """A step's inputs: tokens and positions [n], the rows [m] whose logits are wanted, a cache for each attending layer
    and a state for each recurrent one."""

    tokens: Value
    positions: Value
    out_index: Value
    caches: Mapping[int, Cache]
    states: Mapping[int, State]
    groups: Mapping[str, Mapping[int, Cache]]  # where a layer has several caches: by the name of the group


def linear(t: Tape, block: Block, name: str, x: Value, add: Value | None = None) -> Value:
    """name.weight times x, times name.scale and plus name.bias where the file has them, plus add."""
    x = scaled(t, x, block.floats(f"{name}.scale"))
    return matmul(t, block[f"{name}.weight"], x, block.get(f"{name}.bias"), add)


def scaled(t: Tape, x: Value, factors: list[float] | None) -> Value:
    """x times a weight's second scale, as NVFP4 has one: here, since what is added to the product is not scaled."""
    if factors is None:
        return x
    if len(factors) != 1:
        raise ShapeError(f"the scale of a matrix for {x} has {len(factors)} values, not one")
    return scale(t, x, factors[0])


def gated(t: Tape, block: Block, x: Value, activation: int) -> Value:
    """activation(gate x) * up x."""
    return glu(t, linear(t, block, "ffn_gate", x), linear(t, block, "ffn_up", x), activation)


def moe(t: Tape, block: Block, routing: Routing, x: Value, activation: int, add: Value | None = None) -> Value:
    """What the experts that ffn_gate_inp chooses make of x, plus add."""
    logits = linear(t, block, "ffn_gate_inp", x)
    return experts(t, block, route(t, logits, routing, block.get("exp_probs_b.bias")), x, activation, add)


def experts(
    t: Tape, block: Block, chosen: Chosen, x: Value, activation: int, add: Value | None = None, limit: float = 0.0
) -> Value:
    """The weighted sum of what the chosen experts make of x [E, n], plus add; files may have gate and up in one."""
    both = block.get("ffn_gate_up_exps.weight")
    if both:
        n = both.ne[1] // 2
        gate, up = both.part(f"{both.name}.gate", 0, n), both.part(f"{both.name}.up", n, n)
        scales = [block.get("ffn_gate_up_exps.scale")] * 2
    else:
        gate, up = block["ffn_gate_exps.weight"], block["ffn_up_exps.weight"]
        scales = [block.get("ffn_gate_exps.scale"), block.get("ffn_up_exps.scale")]
    g, u = expert_matmul(t, gate, x, chosen, scales[0]), expert_matmul(t, up, x, chosen, scales[1])
    h = glu(t, g, u, activation, limit)
    h = expert_matmul(t, block["ffn_down_exps.weight"], h, chosen, block.get("ffn_down_exps.scale"))
    return combine(t, h, chosen.weights, add)


def angles(t: Tape, b: Batch, rope: Rope, name: str, divisors: list[float] | None = None) -> Value:
    return rope_angles(t, b.positions, constant(name, rope.frequencies(divisors)), rope.magnitude)


def hidden(t: Tape, s: Spec, w: Weights, x: Value) -> Value:
    """[E, n]: what all rows of the last layer's x are once normed, as embeddings are made of it."""
    return rms_norm(t, x, w["output_norm.weight"], s.eps, "hidden")


def head(t: Tape, s: Spec, w: Weights, b: Batch, x: Value) -> Value:
    """Logits [V, m] of the wanted rows of the last layer's x; without an output matrix the embedding table serves."""
    x = rows_of(t, x, b.out_index)
    x = rms_norm(t, x, w["output_norm.weight"], s.eps)
    output: Weight = w.get("output.weight") or w["token_embd.weight"]
    x = matmul(t, output, scaled(t, x, w.floats("output.scale")), w.get("output.bias"))
    return softcap(t, x, s.final_softcap) if s.final_softcap else x
