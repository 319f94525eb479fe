"""laguna: Poolside's Laguna. Windowed and full layers with different numbers of heads, gated heads, experts.

Full layers turn a part of each head, by YaRN; windowed layers have a rope of their own. What a head saw is multiplied
by the softplus of its gate, of which there is one for the head or one for each value. The first layers are dense; the
others have sigmoid routing, with a bias that decides the choice alone, beside an expert that all rows share.
"""

from __future__ import annotations

from dataclasses import replace

from luced.device.values import Value
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, angles, experts, gated, linear
from luced.models.rope import Rope
from luced.models.routing import read_routing
from luced.models.spec import Spec, read_pattern, read_spec
from luced.models.weights import Block, Weights
from luced.ops import ROPE_NEOX, SILU, SOFTPLUS, Gating, attention, embed, gate, glu, rms_norm, rope, route, softcap
from luced.tape import Tape

PERIOD = 4  # the first of four layers sees the whole context


def spec(m: Metadata, n_vocab: int) -> Spec:
    s = read_spec(m, n_vocab, read_routing(m, "laguna", gating=Gating.SIGMOID, normed=True))
    window = m.count("laguna.attention.sliding_window", 0)
    windowed = read_pattern(m, "laguna", s.n_layer, PERIOD, full=0)
    n_rot = m.count("laguna.rope.dimension_count_swa", s.head_dim)
    near = Rope(n_rot, m.float("laguna.rope.freq_base_swa", s.rope.base))
    if n_rot % 2 or not 0 < n_rot <= s.head_dim or near.base <= 1:
        raise m.bad(f"rope of {n_rot} dimensions, base {near.base} on heads of {s.head_dim}")
    m.count("laguna.leading_dense_block_count", 0)  # the weights say it
    s = replace(s, rope_window=near, router_softcap=m.float("laguna.router_logit_softcapping", 0.0))
    return s.with_windows(window, [w and window > 0 for w in windowed])


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    x = embed(t, w["token_embd.weight"], b.tokens)
    far = angles(t, b, s.rope, "rope")
    near = angles(t, b, s.rope_window or s.rope, "rope_window")
    for i in range(s.n_layer):
        blk = w.block(i)
        turns = near if b.caches[i].window else far
        h = rms_norm(t, x, blk["attn_norm.weight"], s.eps)
        q = linear(t, blk, "attn_q", h).split(s.head_dim)
        k = linear(t, blk, "attn_k", h).split(s.head_dim)
        v = linear(t, blk, "attn_v", h).split(s.head_dim_v)
        q = rope(t, rms_norm(t, q, blk["attn_q_norm.weight"], s.eps), turns, ROPE_NEOX)
        k = rope(t, rms_norm(t, k, blk["attn_k_norm.weight"], s.eps), turns, ROPE_NEOX)
        y = attention(t, q, k, v, b.caches[i], s.attention_scale)
        opened = linear(t, blk, "attn_gate", h)
        y = gate(t, y, opened.split(max(1, opened.ne[0] // s.n_heads[i])), SOFTPLUS).join()
        x = linear(t, blk, "attn_output", y, add=x)
        x = feed_forward(t, s, blk, rms_norm(t, x, blk["ffn_norm.weight"], s.eps), x)
    return x


def feed_forward(t: Tape, s: Spec, blk: Block, h: Value, x: Value) -> Value:
    """x plus what the layer makes of h: SwiGLU, or the experts that h chooses and the shared one."""
    if s.routing is None or not blk.get("ffn_gate_inp.weight"):
        return linear(t, blk, "ffn_down", gated(t, blk, h, SILU), add=x)
    shared = glu(t, linear(t, blk, "ffn_gate_shexp", h), linear(t, blk, "ffn_up_shexp", h), SILU)
    x = linear(t, blk, "ffn_down_shexp", shared, add=x)
    logits = linear(t, blk, "ffn_gate_inp", h)
    if s.router_softcap:
        logits = softcap(t, logits, s.router_softcap)
    return experts(t, blk, route(t, logits, s.routing, blk.get("exp_probs_b.bias")), h, SILU, add=x)
