"""deepseek4: DeepSeek-V4. Hyper-connections, compressed attention, experts that the first layers choose by token.

The residual is a few streams, which each sublayer reads by weights of the row and mixes anew. Queries have a low rank;
one head of keys, which are the values too, is for all of them; what was rotated in it is rotated back in the output.
A row sees a window of tokens and, in most layers, compressed cells of all before it, in one softmax with a sink.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luced.device.values import Value
from luced.errors import ModelError
from luced.gguf.metadata import Metadata
from luced.models.blocks import Batch, experts, linear
from luced.models.compressed import HEAVY, SPARSE, Turns, cell_groups, far, turns
from luced.models.rope import Rope
from luced.models.routing import read_routing
from luced.models.spec import Spec, read_spec
from luced.models.weights import Block, Weights
from luced.ops import (
    ROPE_NORM,
    SILU,
    Gating,
    attend_part,
    combine,
    embed_streams,
    glu,
    grouped_matmul,
    hyper_mix,
    hyper_weights,
    kv_write,
    matmul,
    merge,
    rms_norm,
    rope_tail,
    route,
)
from luced.tape import Tape


@dataclass(frozen=True)
class Details:
    """What the metadata of this architecture alone says."""

    ratios: list[int]  # of each layer; 0: only the window
    rope: Rope  # of layers with compressed cells
    top_k: int  # sparse cells that a row sees
    n_groups: int  # of heads, in the output projection
    n_streams: int
    n_rounds: int
    eps: float  # of hyper-connections
    n_hash: int  # layers that choose experts by token
    limits: list[float]  # of each layer's SwiGLU
    shared_limits: list[float]


def spec(m: Metadata, n_vocab: int) -> Spec:
    s = read_spec(m, n_vocab, read_routing(m, "deepseek4", gating=Gating.SQRT_SOFTPLUS, normed=True))
    if m.count("deepseek4.nextn_predict_layers", 0):  # published in a file of their own, which speculation will read
        what = "deepseek4 with blocks of multi-token prediction among its own is not supported"
        raise ModelError("unsupported_model", what, "take a file without them")
    ratios = m.counts("deepseek4.attention.compress_ratios")[: s.n_layer]
    if len(ratios) < s.n_layer or not set(ratios) <= {0, SPARSE, HEAVY} or set(ratios) == {0} or s.routing is None:
        raise m.bad(f"compress_ratios are {ratios} for {s.n_layer} layers with experts")
    for size in ("attention.q_lora_rank", "attention.output_lora_rank", "attention.indexer.head_count"):
        m.get(f"deepseek4.{size}")  # the shapes of the weights say it
    m.get("deepseek4.embedding_length_out")
    limit = "deepseek4.swiglu_clamp_exp"
    shared = "deepseek4.swiglu_clamp_shexp"
    d = Details(
        ratios,
        replace(s.rope, base=m.float("deepseek4.attention.compress_rope_freq_base"), yarn_magnitude=1.0),
        m.count("deepseek4.attention.indexer.top_k", 0),
        m.count("deepseek4.attention.output_group_count"),
        m.count("deepseek4.hyper_connection.count"),
        m.count("deepseek4.hyper_connection.sinkhorn_iterations"),
        m.float("deepseek4.hyper_connection.epsilon"),
        m.count("deepseek4.hash_layer_count", 0),
        m.floats(limit, s.n_layer),
        m.floats(shared if shared in m else limit, s.n_layer),
    )
    index_dim = m.count("deepseek4.attention.indexer.key_length", 0)
    if min(d.n_groups, d.n_streams, d.n_rounds) < 1 or (SPARSE in ratios and min(index_dim, d.top_k) < 1):
        raise m.bad(f"{d.n_groups} groups, {d.n_streams} streams, {d.n_rounds} rounds, {d.top_k} cells of {index_dim}")
    groups = cell_groups(ratios, s.head_dim, index_dim, m.count("deepseek4.attention.sliding_window"))
    return replace(s, rope=Rope(s.rope.n_rot, s.rope.base), groups=groups, details=d)


def build(t: Tape, s: Spec, w: Weights, b: Batch) -> Value:
    d: Details = s.details
    x = embed_streams(t, w["token_embd.weight"], b.tokens, d.n_streams)
    ropes = {0: (s.rope, "rope"), SPARSE: (d.rope, "sparse"), HEAVY: (d.rope, "heavy")}
    angles = {ratio: turns(t, b, *ropes[ratio]) for ratio in dict.fromkeys(d.ratios)}
    for i in range(s.n_layer):
        blk = w.block(i)
        h, weights = read(t, s, blk, "hc_attn", x)
        h = attend(t, s, blk, b, i, rms_norm(t, h, blk["attn_norm.weight"], s.eps), angles[d.ratios[i]])
        x = hyper_mix(t, x, h, weights)
        h, weights = read(t, s, blk, "hc_ffn", x)
        h = feed_forward(t, s, blk, b, i, rms_norm(t, h, blk["ffn_norm.weight"], s.eps))
        x = hyper_mix(t, x, h, weights)
    return read(t, s, w, "output_hc", x)[0]


def read(t: Tape, s: Spec, w: Block | Weights, name: str, x: Value) -> tuple[Value, Value]:
    """What is to be read of the streams x [E, N, n], and the weights by which they go on."""
    d: Details = s.details
    logits = matmul(t, w[f"{name}_fn.weight"], rms_norm(t, x.join(), None, s.eps))
    weights = hyper_weights(t, logits, w[f"{name}_base.weight"], w[f"{name}_scale.weight"], d.eps, d.n_rounds)
    return combine(t, x.join(), weights.part(0, d.n_streams)), weights


def attend(t: Tape, s: Spec, blk: Block, b: Batch, i: int, h: Value, angles: Turns) -> Value:
    d: Details = s.details
    near = b.groups["window"][i]
    qr = rms_norm(t, linear(t, blk, "attn_q_a", h), blk["attn_q_a_norm.weight"], s.eps)
    q = rms_norm(t, linear(t, blk, "attn_q_b", qr).split(s.head_dim), None, s.eps)
    q = rope_tail(t, q, angles.there, ROPE_NORM)
    kv = rms_norm(t, linear(t, blk, "attn_kv", h), blk["attn_kv_a_norm.weight"], s.eps).split(s.head_dim)
    kv = rope_tail(t, kv, angles.there, ROPE_NORM)
    kv_write(t, kv, kv, near)
    seen = attend_part(t, q, near, s.attention_scale, sinks=blk["attn_sinks.weight"])
    y = merge(t, seen, far(t, s, blk, b, i, h, q, qr, angles, d.top_k)) if d.ratios[i] else seen.out
    y = rope_tail(t, y, angles.back, ROPE_NORM).join()
    return linear(t, blk, "attn_output_b", grouped_matmul(t, blk["attn_output_a.weight"], y, d.n_groups))


def feed_forward(t: Tape, s: Spec, blk: Block, b: Batch, i: int, h: Value) -> Value:
    d: Details = s.details
    assert s.routing is not None
    logits = linear(t, blk, "ffn_gate_inp", h)
    if i < d.n_hash:
        chosen = route(t, logits, s.routing, None, blk["ffn_gate_tid2eid.weight"], b.tokens)
    else:
        chosen = route(t, logits, s.routing, blk.get("exp_probs_b.bias"))
    gate, up = linear(t, blk, "ffn_gate_shexp", h), linear(t, blk, "ffn_up_shexp", h)
    shared = linear(t, blk, "ffn_down_shexp", glu(t, gate, up, SILU, d.shared_limits[i]))
    return experts(t, blk, chosen, h, SILU, shared, d.limits[i])
