"""qwen35: Qwen3.5 and 3.6 dense. Three layers of the gated delta rule to each one of gated attention.

What is called post_attention_norm stands before the FFN. The converter has put the value heads in tiled order (head h
reads key head h % n_k), -exp into ssm_a, and +1 into all norms but ssm_norm. Of text all position streams of the
multimodal rope are one, which makes it plain.
"""

from __future__ import annotations

from luced.device.values import Value
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, angles, gated, linear
from luced.models.hybrid import gated_attention, keep_mtp, linear_attention, read_hybrid
from luced.models.spec import Spec
from luced.models.weights import Weights
from luced.ops import HEADS_TILED, SILU, embed, rms_norm
from luced.tape import Tape


def spec(m: Metadata, n_vocab: int) -> Spec:
    return read_hybrid(m, n_vocab)


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    x = embed(t, w["token_embd.weight"], b.tokens)
    turns = angles(t, b, s.rope, "rope")
    for i in range(s.n_layer):
        blk = w.block(i)
        h = rms_norm(t, x, blk["attn_norm.weight"], s.eps)
        if i in b.states:
            alpha, beta = linear(t, blk, "ssm_alpha", h), linear(t, blk, "ssm_beta", h)
            h = linear_attention(t, s, blk, h, alpha, beta, b.states[i], HEADS_TILED)
            x = linear(t, blk, "ssm_out", h, add=x)
        else:
            x = linear(t, blk, "attn_output", gated_attention(t, s, blk, h, turns, b.caches[i]), add=x)
        h = rms_norm(t, x, blk["post_attention_norm.weight"], s.eps)
        x = linear(t, blk, "ffn_down", gated(t, blk, h, SILU), add=x)
    keep_mtp(s, w)
    return x
