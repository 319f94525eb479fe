"""qwen35moe: Qwen3.5 and 3.6 with experts. As qwen35, its FFN a mixture of experts beside one that sees all rows."""

from __future__ import annotations

from luced.device.values import Value
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, angles, linear, moe
from luced.models.hybrid import gated_attention, keep_mtp, linear_attention, read_hybrid, shared_expert
from luced.models.routing import must_route
from luced.models.spec import Spec
from luced.models.weights import Weights
from luced.ops import HEADS_TILED, SILU, embed, rms_norm
from luced.tape import Tape


def spec(m: Metadata, n_vocab: int) -> Spec:
    return read_hybrid(m, n_vocab, must_route(m, "qwen35moe"))


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    assert s.routing is not None
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
        x = moe(t, blk, s.routing, h, SILU, add=x)
        x = shared_expert(t, blk, h, x)
    keep_mtp(s, w)
    return x
