"""gemma2: Gemma 2. A norm before and after each sublayer, GeGLU, windowed and full layers in turn, capped logits.

The scores of attention and the logits of tokens are both softcapped. The norms' +1 is in the file.
"""

from __future__ import annotations

import math
from dataclasses import replace

from luced.device.values import Value
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, angles, gated, linear
from luced.models.spec import Spec, read_spec
from luced.models.weights import Weights
from luced.ops import GELU_TANH, ROPE_NEOX, add, attention, embed, rms_norm, rope
from luced.tape import Tape


def spec(m: Metadata, n_vocab: int) -> Spec:
    s = read_spec(m, n_vocab)
    if s.n_layer == 46:  # the 27B model, whose scale no key tells
        s = replace(s, attention_scale=(s.n_embd / s.n_heads[0]) ** -0.5)
    s = replace(
        s,
        attention_softcap=m.float("gemma2.attn_logit_softcapping", 50.0),
        final_softcap=m.float("gemma2.final_logit_softcapping", 30.0),
    )
    return s.with_windows(m.count("gemma2.attention.sliding_window", 4096), [i % 2 == 0 for i in range(s.n_layer)])


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    x = embed(t, w["token_embd.weight"], b.tokens, scale=math.sqrt(s.n_embd))
    turns = angles(t, b, s.rope, "rope")
    for i in range(s.n_layer):
        blk = w.block(i)
        h = rms_norm(t, x, blk["attn_norm.weight"], s.eps)
        q = linear(t, blk, "attn_q", h).split(s.head_dim)
        k = linear(t, blk, "attn_k", h).split(s.head_dim)
        v = linear(t, blk, "attn_v", h).split(s.head_dim_v)
        q = rope(t, q, turns, ROPE_NEOX)
        k = rope(t, k, turns, ROPE_NEOX)
        h = attention(t, q, k, v, b.caches[i], s.attention_scale, s.attention_softcap).join()
        h = linear(t, blk, "attn_output", h)
        x = add(t, x, rms_norm(t, h, blk["post_attention_norm.weight"], s.eps))
        h = rms_norm(t, x, blk["ffn_norm.weight"], s.eps)
        h = linear(t, blk, "ffn_down", gated(t, blk, h, GELU_TANH))
        x = add(t, x, rms_norm(t, h, blk["post_ffw_norm.weight"], s.eps))
    return x
