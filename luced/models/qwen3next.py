"""qwen3next: Qwen3-Next. As qwen35moe, but value heads are grouped (head h reads key head h // r), and one matrix gives
the r betas and then the r alphas of each key head."""

from __future__ import annotations

from luced.device.values import Value
from luced.errors import ModelError
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, angles, linear, moe
from luced.models.hybrid import gated_attention, keep_mtp, linear_attention, read_hybrid, shared_expert
from luced.models.routing import must_route
from luced.models.spec import Spec
from luced.models.weights import Weights
from luced.ops import HEADS_GROUPED, SILU, embed, rms_norm
from luced.tape import Tape


def spec(m: Metadata, n_vocab: int) -> Spec:
    return read_hybrid(m, n_vocab, must_route(m, "qwen3next"))


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    assert s.routing is not None
    x = embed(t, w["token_embd.weight"], b.tokens)
    turns = angles(t, b, s.rope, "rope")
    for i in range(s.n_layer):
        blk = w.block(i)
        h = rms_norm(t, x, blk["attn_norm.weight"], s.eps)
        if s.recurrent and i in b.states:
            if blk.get("ssm_in.weight"):
                what = f"{w.file.path}: ssm_in, queries to gates of each key head in turn, is of an older converter"
                raise ModelError("unsupported_model", what, "convert the model anew, or take a newer file")
            r = s.recurrent.n_v // s.recurrent.n_k
            both = linear(t, blk, "ssm_ba", h).split(2 * r)
            h = linear_attention(t, s, blk, h, both.part(r, r), both.part(0, r), b.states[i], HEADS_GROUPED)
            x = linear(t, blk, "ssm_out", h, add=x)
        else:
            x = linear(t, blk, "attn_output", gated_attention(t, s, blk, h, turns, b.caches[i]), add=x)
        h = rms_norm(t, x, blk["post_attention_norm.weight"], s.eps)
        x = moe(t, blk, s.routing, h, SILU, add=x)
        x = shared_expert(t, blk, h, x)
    keep_mtp(s, w)
    return x
