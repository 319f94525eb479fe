"""gemma3: Gemma 3 text. A norm before and after each sublayer, GeGLU, five windowed layers to each full one.

Windowed layers turn with a base of their own; linear rope scaling is for the full ones. The norms' +1 is in the file.
"""

from __future__ import annotations

import math
from dataclasses import replace

from luced.device.values import Value
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, angles, gated, linear
from luced.models.rope import Rope
from luced.models.spec import Spec, read_pattern, read_spec
from luced.models.weights import Weights
from luced.ops import GELU_TANH, ROPE_NEOX, add, attention, embed, rms_norm, rope
from luced.tape import Tape

PERIOD = 6  # every sixth layer sees the whole context


def spec(m: Metadata, n_vocab: int) -> Spec:
    s = read_spec(m, n_vocab)
    window = m.count("gemma3.attention.sliding_window", 0)
    windowed = read_pattern(m, "gemma3", s.n_layer, PERIOD)
    if s.n_layer == 62:  # the 27B model, whose scale no key tells
        s = replace(s, attention_scale=(s.n_embd / s.n_heads[0]) ** -0.5)
    s = replace(s, final_softcap=m.float("gemma3.final_logit_softcapping", 0.0))
    s = replace(s, rope_window=Rope(s.rope.n_rot, m.float("gemma3.rope.freq_base_swa", 10000.0)))
    return s.with_windows(window, [w and window > 0 for w in windowed])


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    x = embed(t, w["token_embd.weight"], b.tokens, scale=math.sqrt(s.n_embd))
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
        h = attention(t, q, k, v, b.caches[i], s.attention_scale).join()
        h = linear(t, blk, "attn_output", h)
        x = add(t, x, rms_norm(t, h, blk["post_attention_norm.weight"], s.eps))
        h = rms_norm(t, x, blk["ffn_norm.weight"], s.eps)
        h = linear(t, blk, "ffn_down", gated(t, blk, h, GELU_TANH))
        x = add(t, x, rms_norm(t, h, blk["post_ffw_norm.weight"], s.eps))
    return x
