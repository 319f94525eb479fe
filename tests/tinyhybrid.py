"""What converters make of HF's hybrids: Qwen3.5 dense and MoE, Qwen3-Next (model-architectures notes §3).

Value heads are reordered from grouped (all of a key head's side by side) to tiled, but for Qwen3-Next, whose fused
projections are taken apart instead; ssm_a is -exp(A_log); norms get their +1, but for the gated one.
"""

from __future__ import annotations

import math
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]

ARCHITECTURES = {"qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next"}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_qkvz.weight": "attn_qkv.weight",  # and attn_gate
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}


def add_metadata(writer: gguf.GGUFWriter, config: Any, n_mtp: int) -> None:
    """The keys that only hybrids have."""
    arch = ARCHITECTURES[config.model_type]
    n_rot = int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
    writer.add_rope_dimension_count(n_rot)
    if arch != "qwen3next":
        n_pairs = n_rot // 2  # every one of a stream that has a position: text has none in the fourth
        writer.add_rope_dimension_sections([(n_pairs + 2) // 3, (n_pairs + 1) // 3, n_pairs // 3, 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    kinds = [kind == "linear_attention" for kind in config.layer_types]
    interval = kinds.index(False) + 1
    writer.add_uint32(f"{arch}.full_attention_interval", interval)
    if kinds != [(i + 1) % interval != 0 for i in range(len(kinds))]:
        writer.add_array(f"{arch}.attention.recurrent_layers", kinds)
    if n_mtp:
        writer.add_uint32(f"{arch}.nextn_predict_layers", n_mtp)


def tensors(model: Any, n_mtp: int) -> Tensors:
    """The model's weights by GGUF name, and random ones for n_mtp blocks that predict further tokens."""
    config = model.config
    found: Tensors = {}
    for hf_name, tensor in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value: NDArray[np.float32] = tensor.detach().float().numpy()
        prefix, inner = _block(hf_name)
        found |= {prefix + name: part for name, part in _converted(config, inner, value).items()}
    n_layer = config.num_hidden_layers
    attending = next(i for i, kind in enumerate(config.layer_types) if kind == "full_attention")
    random, n_embd = np.random.default_rng(3), config.hidden_size
    for i in range(n_layer, n_layer + n_mtp):
        shapes = {name: part.shape for name, part in found.items() if name.startswith(f"blk.{attending}.")}
        shapes |= {f"blk.{attending}.nextn.{name}.weight": (n_embd,) for name in ("enorm", "hnorm", "shared_head_norm")}
        shapes[f"blk.{attending}.nextn.eh_proj.weight"] = (n_embd, 2 * n_embd)
        for name, shape in shapes.items():
            value = random.standard_normal(shape).astype(np.float32) / math.sqrt(shape[-1])
            found[name.replace(f"blk.{attending}.", f"blk.{i}.")] = value
    return found


def gguf_name(hf_name: str) -> str:
    prefix, inner = _block(hf_name)
    return prefix + NAMES[inner]


def _block(hf_name: str) -> tuple[str, str]:
    """The prefix of its block in GGUF, and its name within it in HF."""
    if not hf_name.startswith("model.layers."):
        return "", hf_name
    _, _, i, inner = hf_name.split(".", 3)
    return f"blk.{i}.", inner


def _converted(config: Any, name: str, value: NDArray[np.float32]) -> Tensors:
    n_k, n_v = config.linear_num_key_heads, config.linear_num_value_heads
    n_qk, r = 2 * n_k * config.linear_key_head_dim, n_v // n_k
    is_next = config.model_type == "qwen3_next"

    def tiled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Head kk * r + j becomes head j * n_k + kk."""
        if is_next:
            return rows
        heads = rows.reshape(n_k, r, -1, *rows.shape[1:])
        return np.ascontiguousarray(heads.swapaxes(0, 1).reshape(rows.shape))

    if name == "mlp.experts.gate_up_proj":
        gate, up = np.split(value, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if name == "linear_attn.in_proj_qkvz.weight":  # of each key head: q, k, its values, their gates
        heads = value.reshape(n_k, -1, value.shape[-1])
        d, dv = config.linear_key_head_dim, r * config.linear_value_head_dim
        q, k, v, z = (part.reshape(-1, value.shape[-1]) for part in np.split(heads, [d, 2 * d, 2 * d + dv], axis=1))
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    kind = name.rpartition("linear_attn.")[2]
    if kind in ("in_proj_qkv.weight", "conv1d.weight"):
        value = value.reshape(len(value), -1)
        value = np.concatenate([value[:n_qk], tiled(value[n_qk:])])
    elif kind in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "dt_bias"):
        value = tiled(value)
    elif kind == "A_log":
        value = tiled(-np.exp(value))
    elif kind == "out_proj.weight":
        value = np.ascontiguousarray(tiled(np.ascontiguousarray(value.T)).T)
    elif "norm" in name and kind != "norm.weight":
        value = value + 1
    elif name == "mlp.shared_expert_gate.weight":
        value = value[0]
    return {NAMES[name]: value}
