"""Tiny models of each architecture, chosen so that every branch is taken: heads whose width is not E / H, shared KV
heads, tied and untied outputs, biases, each kind of rope scaling, more tokens than a window, a page and a chunk hold.

HF transformers is the authority. Where torch is missing, what it said is in goldens/ (see make_goldens.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests import hfgguf, tinyhybrid

GOLDENS = Path(__file__).parent / "goldens"
N_TOKENS = 80
N_VOCAB = 96

COMMON: dict[str, Any] = {"vocab_size": N_VOCAB, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 2} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
}
# Rows that are whole blocks of every quantised type that gguf can write.
BLOCKS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
LLAMA3: dict[str, Any] = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0} | {
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 34, "head_dim": 20, "num_key_value_heads": 1} | {
    "num_hidden_layers": 7,
    "query_pre_attn_scalar": 20,
    "sliding_window": 24,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
GEMMA2: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 34, "head_dim": 20, "num_key_value_heads": 1} | {
    "num_hidden_layers": 3,
    "query_pre_attn_scalar": 20,
    "sliding_window": 24,
    "attn_logit_softcapping": 4.0,
    "final_logit_softcapping": 5.0,
}
QWEN3MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24} | {
    "norm_topk_prob": True,
}
GEMMA4: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 34, "head_dim": 12, "num_key_value_heads": 2} | {
    "global_head_dim": 16,
    "num_hidden_layers": 6,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 5.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": N_VOCAB,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
GEMMA4_MOE: dict[str, Any] = {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3} | {
    "moe_intermediate_size": 20,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}
GEMMA4_E: dict[str, Any] = {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 3} | {
    "use_double_wide_mlp": True,
    "sliding_window": 40,
}
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "partial_rotary_factor": 0.5} | {
    "original_max_position_embeddings": 64,
}
LAGUNA: dict[str, Any] = {"num_hidden_layers": 5, "num_attention_heads_per_layer": [4, 6, 6, 6, 4], "head_dim": 16} | {
    "hidden_size": 24,
    "intermediate_size": 32,
    "sliding_window": 24,
    "layer_types": ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"],
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 12,
    "moe_routed_scaling_factor": 2.5,
    "rope_parameters": {
        "full_attention": YARN,
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
}


HYBRID: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 5, "head_dim": 16} | {
    "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
HYBRID_MOE: dict[str, Any] = (
    HYBRID
    | {"num_hidden_layers": 3, "layer_types": HYBRID["layer_types"][2:]}
    | {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20,
    }
)
DEEPSEEK4: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 4, "head_dim": 20, "qk_rope_head_dim": 8} | {
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "q_lora_rank": 16,
    "o_groups": 2,
    "o_lora_rank": 10,
    "compress_ratios": [4, 128, 0, 4],
    "num_hash_layers": 2,
    "sliding_window": 24,
    "index_n_heads": 16,  # of fewer, too many scores are 0, and the choice among equals is nobody's
    "index_head_dim": 12,
    "index_topk": 20,
    "n_routed_experts": 5,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 8,
    "intermediate_size": 8,
    "swiglu_limit": 2.0,
    "rope_theta": 100.0,
    "compress_rope_theta": 1000.0,
    "rope_parameters": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
}


@dataclass(frozen=True)
class Case:
    """max|ours - HF's| over logits is at most `tolerance` times max|HF's logit|."""

    architecture: str
    config: dict[str, Any]
    dtype: str = "F32"  # of the matrices
    tolerance: float = 1e-5
    gain: float = 2.0  # of the matrices: sharp attention, so that a wrong angle or mask shows
    n_tokens: int = N_TOKENS
    peer: bool = True  # llama.cpp, where it has the architecture, computes the same
    n_mtp: int = 0  # blocks of multi-token prediction, which no step runs


CASES = {
    "llama": Case("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama_untied_biased": Case("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    "llama_multihead": Case("llama", {"num_key_value_heads": 4, "head_dim": 10}),
    "llama_f16": Case("llama", BLOCKS, "F16"),
    "llama_bf16": Case("llama", BLOCKS, "BF16"),
    # Quantised weights meet int8 activations, HF's meet F32: what is tested here is that the formats are read right.
    "llama_q8_0": Case("llama", BLOCKS, "Q8_0", 5e-2, 0.7),
    "llama_q4_1": Case("llama", BLOCKS, "Q4_1", 5e-2, 0.7),
    "qwen2": Case("qwen2", {"tie_word_embeddings": True, "head_dim": 10}),
    "qwen2_untied": Case("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 4, "head_dim": 10}, gain=1.5),
    "qwen3": Case("qwen3", {"tie_word_embeddings": True}),
    "qwen3_untied": Case("qwen3", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    "qwen35": Case("qwen35", HYBRID | {"tie_word_embeddings": True}, gain=1.5, n_mtp=1),
    "qwen35_untied": Case(
        "qwen35",
        HYBRID
        | {"linear_num_value_heads": 2, "linear_key_head_dim": 12, "linear_value_head_dim": 20, "num_hidden_layers": 5}
        | {"layer_types": ["full_attention", *["linear_attention"] * 3, "full_attention"], "linear_conv_kernel_dim": 3}
        | {"rms_norm_eps": 1e-3},  # which is not that of the L2 norm
        gain=1.0,
    ),
    "qwen35moe": Case("qwen35moe", HYBRID_MOE, tolerance=3e-5, gain=1.5, n_mtp=1),
    "qwen3next": Case("qwen3next", HYBRID_MOE | {"tie_word_embeddings": True}, tolerance=3e-5, gain=1.5),
    "qwen3moe": Case("qwen3moe", QWEN3MOE, tolerance=3e-5),
    # All experts, since which of them are chosen hangs on less than the rounding of activations.
    "qwen3moe_q8_0": Case(
        "qwen3moe", QWEN3MOE | BLOCKS | {"moe_intermediate_size": 32, "num_experts_per_tok": 8}, "Q8_0", 5e-2, 0.7
    ),
    "gemma2": Case("gemma2", GEMMA2),
    "gemma2_wide": Case("gemma2", GEMMA2 | {"sliding_window": 40, "num_key_value_heads": 2}),
    "gemma3": Case("gemma3", GEMMA),
    "gemma3_pattern": Case(
        "gemma3",
        GEMMA
        | {"num_hidden_layers": 3, "num_key_value_heads": 2, "final_logit_softcapping": 5.0}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 40},
    ),
    "gemma4": Case("gemma4", GEMMA4, tolerance=2e-4),
    "gemma4_moe": Case("gemma4", GEMMA4 | GEMMA4_MOE, tolerance=2e-4),
    "gemma4_e": Case("gemma4", GEMMA4 | GEMMA4_E, tolerance=2e-4),
    # Both readings of YaRN: the file names a magnitude and the turns, which llama.cpp does not read, or not.
    "laguna": Case("laguna", LAGUNA, tolerance=3e-5),
    "laguna_elements": Case(
        "laguna",
        LAGUNA
        | {"num_hidden_layers": 4, "num_attention_heads_per_layer": [6, 4, 4, 6], "gating": "per-element"}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 40}
        | {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"], "moe_router_logit_softcapping": 2.0}
        | {
            "rope_parameters": {
                "full_attention": YARN | {"attention_factor": 1.0, "beta_fast": 8.0, "beta_slow": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
            }
        },
        tolerance=3e-5,
        peer=False,
    ),
    # llama.cpp has no indexer of so few values; with one of 64, and heads of 128, it says the same.
    "deepseek4": Case("deepseek4", DEEPSEEK4, tolerance=3e-5, n_tokens=300, peer=False),
}


def tokens(case: Case) -> list[int]:
    random = np.random.default_rng(7)
    return [int(i) for i in random.integers(0, case.config.get("vocab_size", N_VOCAB), case.n_tokens)]


def make(case: Case) -> Any:
    """The HF model, every weight random (also norms and biases), rounded to the case's format. Needs torch."""
    import torch
    import transformers

    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen35": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
        "qwen35moe": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
        "qwen3next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
        "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
        "qwen3moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
        "gemma4": (transformers.Gemma4TextConfig, transformers.Gemma4ForCausalLM),
        "laguna": (transformers.LagunaConfig, transformers.LagunaForCausalLM),
        "deepseek4": (transformers.DeepseekV4Config, transformers.DeepseekV4ForCausalLM),
    }[case.architecture]
    config = config_class(**(COMMON | case.config), attn_implementation="eager")
    model = model_class(config).eval()
    random = np.random.default_rng(1)
    with torch.no_grad():
        buffers = dict(model.named_buffers())
        scalars = [
            (name, b) for name, b in buffers.items() if name.endswith(("layer_scalar", "e_score_correction_bias"))
        ]
        for name, weight in [*model.named_parameters(), *scalars]:
            value = _random(random, name, tuple(weight.shape), case)
            weight.copy_(torch.from_numpy(value))
        for table in [b for name, b in buffers.items() if name.endswith("tid2eid")]:
            choices = random.random((table.shape[0], config.n_routed_experts)).argsort(1)
            table.copy_(torch.from_numpy(choices[:, : table.shape[1]]))
    return model


def _random(random: np.random.Generator, name: str, shape: tuple[int, ...], case: Case) -> NDArray[np.float32]:
    value = random.standard_normal(shape).astype(np.float32)
    if name.endswith("A_log"):
        return value - 2  # a memory of some tokens
    if "conv1d" in name:
        return 0.5 * value
    if len(shape) > 1:
        value *= case.gain / math.sqrt(shape[-1])
        kind = gguf.GGMLQuantizationType[case.dtype]
        return np.asarray(gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind))
    return 0.3 * value + (0 if name.endswith("bias") or _is_zero_centred(name, case) else 1)


def _is_zero_centred(name: str, case: Case) -> bool:
    """Whether HF adds 1 to the weight of this norm."""
    if case.architecture in tinyhybrid.ARCHITECTURES.values():
        return not name.endswith("linear_attn.norm.weight")
    return case.architecture in hfgguf.PLUS_ONE


def reference(model: Any, ids: list[int]) -> NDArray[np.float32]:
    """HF's logits [n_tokens, n_vocab]."""
    import torch

    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
    return logits
