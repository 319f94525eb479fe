"""GGUF files of HF models, as the converters make them; `gguf` writes the file.

Sources: model-architectures notes §1, 2, 4, 5, 6 (what converters do to HF weights).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests import tinydeepseek, tinyhybrid
from tests.tinygguf import Tensors, add_vocabulary, write

# model_type of HF: general.architecture of GGUF.
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "qwen3_moe": "qwen3moe",
    "gemma4_text": "gemma4",
    "laguna": "laguna",
    "deepseek_v4": "deepseek4",
}
QWEN_EXPERTS = ("qwen3moe", "qwen35moe", "qwen3next")
PLUS_ONE = ("gemma2", "gemma3")  # whose norms the converter adds 1 to
COMMON_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "self_attn.g_proj": "attn_gate",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
PLAIN_NAMES = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}
# Whose GGUF names have no .weight.
OWN_NAMES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
}
SPLIT_EXPERTS = ("qwen3moe", "laguna", "deepseek4")  # whose gate and up the converter parts


def export(model: Any, path: Path, dtype: str = "F32", *, vocabulary: bool = False, n_mtp: int = 0) -> Path:
    """An HF causal LM as the converters write it; with the vocabulary of tiny_chat_model, or with none; a hybrid with
    n_mtp random blocks of multi-token prediction."""
    config = model.config
    architecture = (ARCHITECTURES | tinyhybrid.ARCHITECTURES)[config.model_type]
    is_hybrid = config.model_type in tinyhybrid.ARCHITECTURES
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers + n_mtp)
    writer.add_head_count(getattr(config, "num_attention_heads_per_layer", config.num_attention_heads))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if vocabulary:
        add_vocabulary(writer)
    else:
        writer.add_tokenizer_model("none")
    tensors = tinyhybrid.tensors(model, n_mtp) if is_hybrid else _tensors(model, architecture)
    rope = config.rope_parameters
    if architecture == "gemma4":
        rope = _gemma4_keys(writer, config)
        tensors["rope_freqs.weight"] = _quarter_turned(rope, config.per_layer_config["full_attention"].head_dim)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture == "gemma2":
        writer.add_sliding_window(config.sliding_window)
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        windowed = [kind == "sliding_attention" for kind in config.layer_types]
        if windowed != [i % 6 < 5 for i in range(len(windowed))]:
            writer.add_sliding_window_pattern(windowed)
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    elif is_hybrid:
        tinyhybrid.add_metadata(writer, config, n_mtp)
    elif architecture == "laguna":
        rope = _laguna_keys(writer, config)
    elif architecture == "deepseek4":
        rope = tinydeepseek.add_metadata(writer, config)
    elif architecture != "gemma4":
        writer.add_rope_dimension_count(config.head_dim)
    if architecture in QWEN_EXPERTS:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if is_hybrid:
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        _yarn_keys(writer, architecture, rope)
    elif rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = _llama3_divisors(rope, config.head_dim)
    else:
        assert rope["rope_type"] in ("default", "proportional"), rope
    return write(writer, tensors, dtype)


def _yarn_keys(writer: gguf.GGUFWriter, architecture: str, rope: dict[str, Any]) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    for key, name in (("attention_factor", "attn_factor"), ("beta_fast", "beta_fast"), ("beta_slow", "beta_slow")):
        if key in rope:
            writer.add_float32(f"{architecture}.rope.scaling.yarn_{name}", rope[key])


def _laguna_keys(writer: gguf.GGUFWriter, config: Any) -> dict[str, Any]:
    """Writes what laguna alone has; gives the rope of the full layers."""
    full, near = (config.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    if windowed != [i % 4 != 0 for i in range(len(windowed))]:
        writer.add_sliding_window_pattern(windowed)
    if any(windowed):
        writer.add_sliding_window(config.sliding_window)
    writer.add_rope_dimension_count(int(config.head_dim * full["partial_rotary_factor"]))
    writer.add_uint32("laguna.rope.dimension_count_swa", int(config.head_dim * near["partial_rotary_factor"]))
    writer.add_float32("laguna.rope.freq_base_swa", near["rope_theta"])
    writer.add_leading_dense_block_count(config.mlp_layer_types.index("sparse"))
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config.moe_routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.moe_router_logit_softcapping:
        writer.add_float32("laguna.router_logit_softcapping", config.moe_router_logit_softcapping)
    rope: dict[str, Any] = full
    return rope


def _gemma4_keys(writer: gguf.GGUFWriter, config: Any) -> dict[str, Any]:
    """Writes what gemma4 alone has; gives the rope of the full layers."""
    full, near = (config.per_layer_config[f"{kind}_attention"] for kind in ("full", "sliding"))
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    writer.add_head_count_kv([(near if is_near else full).num_key_value_heads for is_near in windowed])
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    for key in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
        writer.add_uint32(f"gemma4.{key}", near.head_dim)
    writer.add_float32("gemma4.rope.freq_base_swa", config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(windowed)
    writer.add_uint32("gemma4.attention.shared_kv_layers", config.num_kv_shared_layers)
    writer.add_uint32("gemma4.embedding_length_per_layer_input", config.hidden_size_per_layer_input or 0)
    n_own = len(windowed) - config.num_kv_shared_layers
    wide = [1 + (config.use_double_wide_mlp and i >= n_own) for i in range(len(windowed))]
    writer.add_feed_forward_length([config.intermediate_size * n for n in wide])
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    rope: dict[str, Any] = config.rope_parameters["full_attention"]
    return rope


def _quarter_turned(rope: dict[str, Any], head_dim: int) -> NDArray[np.float32]:
    """Divisors of the frequencies: only the first pairs turn."""
    n_turned = int(head_dim // 2 * rope["partial_rotary_factor"])
    return np.where(np.arange(head_dim // 2) < n_turned, 1, 1e30).astype(np.float32)


def gguf_name(hf_name: str, architecture: str) -> str:
    """What the tensor is called that holds this parameter of HF, alone or with others."""
    if architecture in tinyhybrid.ARCHITECTURES.values():
        return tinyhybrid.gguf_name(hf_name)
    own = {"gemma2": GEMMA_NAMES, "gemma3": GEMMA_NAMES, "gemma4": GEMMA_NAMES, "deepseek4": tinydeepseek.NAMES}
    names = COMMON_NAMES | own.get(architecture, PLAIN_NAMES)
    stem, dot, suffix = hf_name.removeprefix("model.").rpartition(".")
    if suffix not in ("weight", "bias"):  # a parameter by its own name
        stem, suffix = stem + dot + suffix, "weight"
    block = ""
    if stem.startswith("layers."):
        _, i, stem = stem.split(".", 2)
        block = f"blk.{i}."
    return block + (OWN_NAMES[stem] if stem in OWN_NAMES else f"{names[stem]}.{suffix}")


def _tensors(model: Any, architecture: str) -> Tensors:
    """The model's weights by GGUF name, changed as the converter of this architecture does."""
    config = model.config
    tensors = {}
    for hf_name, tensor in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value: NDArray[np.float32] = tensor.detach().float().numpy()
        name = gguf_name(hf_name, architecture)
        if architecture in SPLIT_EXPERTS and "ffn_gate_up_exps" in name:
            for part, half in zip(("gate", "up"), np.split(value, 2, axis=1), strict=True):
                tensors[name.replace("gate_up", part)] = np.ascontiguousarray(half)
            continue
        if architecture in PLUS_ONE and "norm" in name:
            value = value + 1
        if architecture == "llama" and ".attn_q." in name:
            value = _paired(value, config.num_attention_heads)
        if architecture == "llama" and ".attn_k." in name:
            value = _paired(value, config.num_key_value_heads)
        tensors[name] = value.astype(np.int32) if name.endswith("tid2eid.weight") else value
    return tensors


def _paired(rows: NDArray[np.float32], n_head: int) -> NDArray[np.float32]:
    """Row s * half + j of each head, s in {0, 1}, becomes row 2j + s: rope then turns neighbours."""
    halves = rows.reshape(n_head, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def _llama3_divisors(rope: dict[str, Any], head_dim: int) -> NDArray[np.float32]:
    """What llama 3.1 divides each frequency by: 1 for short waves, `factor` for long ones, smooth in between."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    frequency = rope["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / rope["factor"] + smooth), np.float32)
