"""What the hybrids share: layers of the gated delta rule (arXiv 2412.06464), gated attention, the expert of all rows,
blocks of multi-token prediction."""

from __future__ import annotations

from dataclasses import replace

from luced.device.values import Value
from luced.gguf.metadata import Metadata
from luced.models.blocks import linear
from luced.models.spec import Recurrent, Spec, read_spec
from luced.models.weights import Block, Weights
from luced.ops import (
    ROPE_NEOX,
    SILU,
    Cache,
    Routing,
    State,
    add,
    attention,
    conv,
    delta,
    gate,
    gated_norm,
    glu,
    l2_norm,
    matmul,
    rms_norm,
    rope,
)
from luced.tape import Tape

MOST_TAPS = 16
INTERVAL = 4  # every fourth layer attends
L2_EPS = 1e-6  # of queries and keys, whatever that of the other norms is; no key tells


def read_hybrid(m: Metadata, n_vocab: int, routing: Routing | None = None) -> Spec:
    """The keys of a hybrid, with its layers parted. block_count counts the blocks of multi-token prediction too."""
    s = read_spec(m, n_vocab, routing)
    arch = s.architecture
    m.get(f"{arch}.rope.dimension_sections")  # of text all position streams are one
    n_mtp = m.count(f"{arch}.nextn_predict_layers", 0)
    if not 0 <= n_mtp < s.n_layer:
        raise m.bad(f"{n_mtp} of {s.n_layer} blocks cannot be for multi-token prediction")
    layers = range(s.n_layer - n_mtp)
    interval = m.count(f"{arch}.full_attention_interval", INTERVAL)
    if interval < 1:
        raise m.bad(f"{arch}.full_attention_interval is {interval}")
    is_recurrent = [(i + 1) % interval != 0 for i in range(s.n_layer)]
    if f"{arch}.attention.recurrent_layers" in m:
        is_recurrent = m[f"{arch}.attention.recurrent_layers"]
        if not isinstance(is_recurrent, list) or len(is_recurrent) not in (len(layers), s.n_layer):
            raise m.bad(f"{arch}.attention.recurrent_layers has no entry for each of {len(layers)} layers")
    attending = [i for i in layers if not is_recurrent[i]]
    recurrent = tuple(i for i in layers if is_recurrent[i])
    if not attending:
        raise m.bad("no layer attends")
    s = replace(s, n_layer=len(layers), n_mtp=n_mtp)
    return replace(
        s,
        groups=s.group("full", 0, attending, s.head_dim, s.head_dim_v),
        recurrent=_read_recurrent(m, arch, recurrent) if recurrent else None,
    )


def _read_recurrent(m: Metadata, arch: str, layers: tuple[int, ...]) -> Recurrent:
    n_k, n_v = m.count(f"{arch}.ssm.group_count"), m.count(f"{arch}.ssm.time_step_rank")
    d_k, inner = m.count(f"{arch}.ssm.state_size"), m.count(f"{arch}.ssm.inner_size")
    n_taps = m.count(f"{arch}.ssm.conv_kernel")
    if min(n_k, n_v, d_k, inner) < 1 or n_v % n_k or inner % n_v or not 1 < n_taps <= MOST_TAPS:
        raise m.bad(f"{n_v} value heads of {inner} values, {n_k} key heads of {d_k}, a convolution over {n_taps}")
    return Recurrent(layers, n_k, n_v, d_k, inner // n_v, n_taps)


def linear_attention(
    t: Tape, s: Spec, block: Block, h: Value, alpha: Value, beta: Value, state: State, order: int
) -> Value:
    """[dv * n_v, n]: convolution, the gated delta rule on normed keys and queries, the gated norm."""
    r = s.recurrent
    assert r is not None
    z = linear(t, block, "attn_gate", h)
    c = conv(t, linear(t, block, "attn_qkv", h), block["ssm_conv1d.weight"], state)
    n_qk = r.n_k * r.d_k
    qk = l2_norm(t, c.part(0, 2 * n_qk).split(r.d_k), L2_EPS).join()
    q, k = qk.part(0, n_qk).split(r.d_k), qk.part(n_qk, n_qk).split(r.d_k)
    v = c.part(2 * n_qk, r.n_v * r.d_v).split(r.d_v)
    o = delta(t, q, k, v, alpha, beta, block["ssm_a"], block["ssm_dt.bias"], state, order)
    return gated_norm(t, o, z.split(r.d_v), block["ssm_norm.weight"], s.eps).join()


def gated_attention(t: Tape, s: Spec, block: Block, h: Value, turns: Value, cache: Cache) -> Value:
    """[Dv * H, n]: each head's rows of attn_q are its query and then its gate."""
    both = linear(t, block, "attn_q", h).split(s.head_dim + s.head_dim_v)
    q, g = both.part(0, s.head_dim), both.part(s.head_dim, s.head_dim_v)
    k = linear(t, block, "attn_k", h).split(s.head_dim)
    v = linear(t, block, "attn_v", h).split(s.head_dim_v)
    q = rope(t, rms_norm(t, q, block["attn_q_norm.weight"], s.eps), turns, ROPE_NEOX)
    k = rope(t, rms_norm(t, k, block["attn_k_norm.weight"], s.eps), turns, ROPE_NEOX)
    return gate(t, attention(t, q, k, v, cache, s.attention_scale), g).join()


def shared_expert(t: Tape, block: Block, h: Value, x: Value) -> Value:
    """x plus what the expert of all rows makes of h [E, n], gated by one number for each row."""
    y = glu(t, linear(t, block, "ffn_gate_shexp", h), linear(t, block, "ffn_up_shexp", h), SILU)
    y = linear(t, block, "ffn_down_shexp", y)
    return add(t, x, gate(t, y, matmul(t, block.row("ffn_gate_inp_shexp.weight"), h)))


def keep_mtp(s: Spec, w: Weights) -> None:
    """The blocks of multi-token prediction are for speculation: no step of the model itself runs them."""
    for i in range(s.n_layer, s.n_layer + s.n_mtp):
        w.keep(i, ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"))
