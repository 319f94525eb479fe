"""gemma4: Gemma 4, dense, with experts (26B-A4B) and with an embedding for each layer (E2B, E4B).

Windowed and full layers have heads of different width and number. Full layers turn a quarter of each head (rope_freqs
makes the rest stand still); where they have no attn_v, their keys are their values. The last layers may see the keys
and values of earlier ones. Scores are not scaled, norms have no +1, values are normed without a weight.
"""

from __future__ import annotations

import math
from dataclasses import replace

from luced.device.values import Value
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, angles, experts, gated, linear
from luced.models.rope import Rope
from luced.models.routing import read_routing
from luced.models.spec import Spec, read_spec
from luced.models.weights import Block, Weights
from luced.ops import (
    GELU_TANH,
    ROPE_NEOX,
    Cache,
    add,
    attend,
    embed,
    glu,
    kv_write,
    matmul,
    rms_norm,
    rope,
    route,
    scale,
)
from luced.tape import Tape


def spec(m: Metadata, n_vocab: int) -> Spec:
    s = read_spec(m, n_vocab, read_routing(m, "gemma4", normed=True))
    windowed = m.bools("gemma4.attention.sliding_window_pattern", s.n_layer)
    head_dim = m.count("gemma4.attention.key_length_swa", s.head_dim)
    head_dim_v = m.count("gemma4.attention.value_length_swa", s.head_dim_v)
    near = Rope(m.count("gemma4.rope.dimension_count_swa", head_dim), m.float("gemma4.rope.freq_base_swa", 10000.0))
    m.count("gemma4.embedding_length_per_layer_input", 0)  # the shape of per_layer_proj_norm says it
    n_own = s.n_layer - m.count("gemma4.attention.shared_kv_layers", 0)
    last = {windowed[i]: i for i in range(n_own)}  # the last layer of each kind with keys of its own
    if n_own < 1 or set(windowed) != set(last) or False not in last:
        raise m.bad(f"{s.n_layer - n_own} layers share the keys of those before them, which are not of both kinds")
    full = s.group("full", 0, [i for i in range(n_own) if not windowed[i]], s.head_dim, s.head_dim_v)
    window = m.count("gemma4.attention.sliding_window")
    return replace(
        s,
        attention_scale=1.0,
        final_softcap=m.float("gemma4.final_logit_softcapping", 0.0),
        rope_window=near,
        groups=full + s.group("window", window, [i for i in range(n_own) if windowed[i]], head_dim, head_dim_v),
        lenders={i: i if i < n_own else last[windowed[i]] for i in range(s.n_layer)},
    )


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    x = embed(t, w["token_embd.weight"], b.tokens, scale=math.sqrt(s.n_embd))
    assert s.lenders is not None
    far = angles(t, b, s.rope, "rope", w.floats("rope_freqs.weight"))
    near = angles(t, b, s.rope_window or s.rope, "rope_window")
    inputs = layer_inputs(t, s, w, b, x)
    for i in range(s.n_layer):
        blk, cache = w.block(i), b.caches[i]
        turns = near if cache.window else far
        h = rms_norm(t, x, blk["attn_norm.weight"], s.eps)
        q = linear(t, blk, "attn_q", h).split(cache.k_pages.ne[0])
        q = rope(t, rms_norm(t, q, blk["attn_q_norm.weight"], s.eps), turns, ROPE_NEOX)
        if s.lenders[i] == i:
            write(t, s, blk, h, turns, cache)
        else:
            blk.ignore("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
        h = linear(t, blk, "attn_output", attend(t, q, cache, s.attention_scale).join())
        x = add(t, x, rms_norm(t, h, blk["post_attention_norm.weight"], s.eps))
        h = rms_norm(t, feed_forward(t, s, blk, x), blk["post_ffw_norm.weight"], s.eps)
        x = add(t, x, h)
        if inputs:
            h = glu(t, linear(t, blk, "inp_gate", x), inputs.head(i), GELU_TANH)
            x = add(t, x, rms_norm(t, linear(t, blk, "proj", h), blk["post_norm.weight"], s.eps))
        if factor := blk.floats("layer_output_scale.weight"):
            x = scale(t, x, factor[0])
    return x


def write(t: Tape, s: Spec, blk: Block, h: Value, turns: Value, cache: Cache) -> None:
    """Stores the layer's keys and values."""
    k = v = linear(t, blk, "attn_k", h).split(cache.k_pages.ne[0])
    if blk.get("attn_v.weight"):
        v = linear(t, blk, "attn_v", h).split(cache.v_pages.ne[0])
    k = rope(t, rms_norm(t, k, blk["attn_k_norm.weight"], s.eps), turns, ROPE_NEOX)
    kv_write(t, k, rms_norm(t, v, None, s.eps), cache)


def feed_forward(t: Tape, s: Spec, blk: Block, x: Value) -> Value:
    """GeGLU; in a layer with experts, plus what they make of x, each normed."""
    h = rms_norm(t, x, blk["ffn_norm.weight"], s.eps)
    h = linear(t, blk, "ffn_down", gated(t, blk, h, GELU_TANH))
    if s.routing is None or not blk.get("ffn_gate_inp.weight"):
        return h
    h = rms_norm(t, h, blk["post_ffw_norm_1.weight"], s.eps)
    asked = scale(t, rms_norm(t, x, blk["ffn_gate_inp.scale"], s.eps), s.n_embd**-0.5)
    chosen = route(t, matmul(t, blk["ffn_gate_inp.weight"], asked), s.routing)
    e = experts(t, blk, chosen, rms_norm(t, x, blk["pre_ffw_norm_2.weight"], s.eps), GELU_TANH)
    return add(t, h, rms_norm(t, e, blk["post_ffw_norm_2.weight"], s.eps))


def layer_inputs(t: Tape, s: Spec, w: Weights, b: Batch, x: Value) -> Value | None:
    """[D, n_layer, n]: each layer's own input, from the token and from its embedding x; None: the model has none."""
    norm = w.get("per_layer_proj_norm.weight")
    if norm is None:
        return None
    n = norm.ne[0]
    of_token = embed(t, w["per_layer_token_embd.weight"], b.tokens, scale=math.sqrt(n))
    of_context = scale(t, matmul(t, w["per_layer_model_proj.weight"], x), s.n_embd**-0.5)
    of_context = rms_norm(t, of_context.split(n), norm, s.eps).join()
    return scale(t, add(t, of_context, of_token), 0.5**0.5).split(n)
