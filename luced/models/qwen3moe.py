"""qwen3moe: Qwen3 with experts. As qwen3; softmax over all experts, the best few, their weights made to sum to 1."""

from __future__ import annotations

from luced.device.values import Value
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, angles, linear, moe
from luced.models.routing import must_route
from luced.models.spec import Spec, read_spec
from luced.models.weights import Weights
from luced.ops import ROPE_NEOX, SILU, attention, embed, rms_norm, rope
from luced.tape import Tape


def spec(m: Metadata, n_vocab: int) -> Spec:
    return read_spec(m, n_vocab, must_route(m, "qwen3moe"))


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    assert s.routing is not None
    x = embed(t, w["token_embd.weight"], b.tokens)
    turns = angles(t, b, s.rope, "rope")
    for i in range(s.n_layer):
        blk = w.block(i)
        h = rms_norm(t, x, blk["attn_norm.weight"], s.eps)
        q = linear(t, blk, "attn_q", h).split(s.head_dim)
        k = linear(t, blk, "attn_k", h).split(s.head_dim)
        v = linear(t, blk, "attn_v", h).split(s.head_dim_v)
        q = rope(t, rms_norm(t, q, blk["attn_q_norm.weight"], s.eps), turns, ROPE_NEOX)
        k = rope(t, rms_norm(t, k, blk["attn_k_norm.weight"], s.eps), turns, ROPE_NEOX)
        h = attention(t, q, k, v, b.caches[i], s.attention_scale).join()
        x = linear(t, blk, "attn_output", h, add=x)
        h = rms_norm(t, x, blk["ffn_norm.weight"], s.eps)
        x = moe(t, blk, s.routing, h, SILU, add=x)
    return x
