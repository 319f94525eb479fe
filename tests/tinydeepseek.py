"""What the converter makes of HF's DeepSeek-V4. Source: model-architectures notes §7."""

from __future__ import annotations

from typing import Any

import gguf

RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
NAMES = {
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_norm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_proj": "attn_kv",
    "self_attn.kv_norm": "attn_kv_a_norm",
    "self_attn.o_a_proj": "attn_output_a",
    "self_attn.o_b_proj": "attn_output_b",
    "self_attn.sinks": "attn_sinks",
    "self_attn.compressor.indexer.q_b_proj": "indexer.attn_q_b",
    "self_attn.compressor.indexer.scorer.weights_proj": "indexer.proj",
    "mlp.gate.tid2eid": "ffn_gate_tid2eid",
    **{f"{a}_hc.{part}": f"hc_{a}_{part}" for a in ("attn", "ffn") for part in ("fn", "base", "scale")},
    **{f"hc_head.hc_{part}": f"output_hc_{part}" for part in ("fn", "base", "scale")},
}
for hf, ours in (("compressor", "attn_compressor"), ("compressor.indexer", "indexer_compressor")):
    parts = {"kv_proj": "kv", "gate_proj": "gate", "position_bias": "ape", "kv_norm": "norm"}
    NAMES |= {f"self_attn.{hf}.{theirs}": f"{ours}_{part}" for theirs, part in parts.items()}


def add_metadata(writer: gguf.GGUFWriter, config: Any) -> dict[str, Any]:
    """Writes what deepseek4 alone has; gives the rope of the layers with compressed cells, with the plain base."""
    main, compressed = config.rope_parameters["main"], config.rope_parameters["compress"]
    for key, n in {
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.output_lora_rank": config.o_lora_rank,
        "attention.output_group_count": config.o_groups,
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
        "hyper_connection.count": config.hc_mult,
        "hyper_connection.sinkhorn_iterations": config.hc_sinkhorn_iters,
        "hash_layer_count": config.mlp_layer_types.count("hash_moe"),
        "embedding_length_out": config.hc_mult * config.hidden_size,
    }.items():
        writer.add_uint32(f"deepseek4.{key}", n)
    writer.add_float32("deepseek4.hyper_connection.epsilon", config.hc_eps)
    writer.add_float32("deepseek4.attention.compress_rope_freq_base", compressed["rope_theta"])
    writer.add_array("deepseek4.attention.compress_ratios", [RATIOS[kind] for kind in config.layer_types])
    writer.add_array("deepseek4.swiglu_clamp_exp", [config.swiglu_limit] * config.num_hidden_layers)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_uint32("deepseek4.expert_gating_func", 4)
    return {**compressed, "rope_theta": main["rope_theta"]}
