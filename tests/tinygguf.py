"""Tiny GGUF files with random weights: from HF models as the converters make them, and a whole chat model from numpy.

Sources: model-architectures notes §1, 2, 4 (what converters do to HF weights); `gguf` writes the file.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests import ggml, tinyhybrid

Tensors = dict[str, NDArray[np.float32]]

# model_type of HF: general.architecture of GGUF.
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
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
}
PLAIN_NAMES = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = ("the", "and", "you", "is", "in", "of", "to", "hello", "world", "what", "one", "engine", "model", "for")
N_VOCAB = 300


def tiny_chat_model(
    path: Path,
    *,
    seed: int = 0,
    n_ctx: int = 2048,
    dtype: str = "F32",
    spelled_out: bool = False,
    n_embd: int = 64,
    template: str = CHATML,
) -> Path:
    """A llama with a byte-level BPE vocabulary of 300 tokens and a chat template: small enough to serve in a test,
    and its answers are noise that depends on every token of the prompt. Needs no torch.

    Its matrices are of `dtype`, or, spelled out, the same values in F32.
    """
    n_head, n_kv, n_ff, n_layer = 4, 2, 2 * n_embd, 2
    head = n_embd // n_head
    random = np.random.default_rng(seed)

    def weight(n_out: int, n_in: int, gain: float = 1.0) -> NDArray[np.float32]:
        return (random.standard_normal((n_out, n_in)) * gain / math.sqrt(n_in)).astype(np.float32)

    tensors = {
        "token_embd.weight": weight(N_VOCAB, n_embd, math.sqrt(n_embd)),
        "output_norm.weight": np.ones(n_embd, np.float32),
        "output.weight": weight(N_VOCAB, n_embd, 3.0),
    }
    for i in range(n_layer):
        tensors |= {
            f"blk.{i}.attn_norm.weight": np.ones(n_embd, np.float32),
            f"blk.{i}.attn_q.weight": weight(n_head * head, n_embd, 2.0),
            f"blk.{i}.attn_k.weight": weight(n_kv * head, n_embd, 2.0),
            f"blk.{i}.attn_v.weight": weight(n_kv * head, n_embd),
            f"blk.{i}.attn_output.weight": weight(n_embd, n_head * head),
            f"blk.{i}.ffn_norm.weight": np.ones(n_embd, np.float32),
            f"blk.{i}.ffn_gate.weight": weight(n_ff, n_embd),
            f"blk.{i}.ffn_up.weight": weight(n_ff, n_embd),
            f"blk.{i}.ffn_down.weight": weight(n_embd, n_ff),
        }
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_kv)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    add_vocabulary(writer, template)
    return _write(writer, tensors, dtype, spelled_out)


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
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if vocabulary:
        add_vocabulary(writer)
    else:
        writer.add_tokenizer_model("none")
    tensors = tinyhybrid.tensors(model, n_mtp) if is_hybrid else _tensors(model, architecture)
    rope = config.rope_parameters
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
    else:
        writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = _llama3_divisors(rope, config.head_dim)
    else:
        assert rope["rope_type"] == "default", rope
    return _write(writer, tensors, dtype)


def _tensors(model: Any, architecture: str) -> Tensors:
    """The model's weights by GGUF name, changed as the converter of this architecture does."""
    config = model.config
    names = COMMON_NAMES | (GEMMA_NAMES if architecture.startswith("gemma") else PLAIN_NAMES)
    tensors = {}
    for hf_name, tensor in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value: NDArray[np.float32] = tensor.detach().float().numpy()
        stem, suffix = hf_name.removeprefix("model.").rsplit(".", 1)
        if stem.startswith("layers."):
            _, i, inner = stem.split(".", 2)
            name = f"blk.{i}.{names[inner]}.{suffix}"
        else:
            name = f"{names[stem]}.{suffix}"
        if architecture in PLUS_ONE and "norm" in name:
            value = value + 1
        if architecture == "llama" and ".attn_q." in name:
            value = _paired(value, config.num_attention_heads)
        if architecture == "llama" and ".attn_k." in name:
            value = _paired(value, config.num_key_value_heads)
        tensors[name] = value
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


def add_vocabulary(writer: gguf.GGUFWriter, template: str = CHATML) -> None:
    """Ids: the special tokens, 3 + b for byte b, then as many merges (towards a few English words) as fit."""
    spelling = _byte_spelling()
    tokens = [*SPECIAL, *spelling]
    merges = []
    for word in WORDS:
        letters = [spelling[b] for b in f" {word}".encode()]
        for i in range(1, len(letters)):
            left, right = "".join(letters[:i]), letters[i]
            if left + right not in tokens and len(tokens) < N_VOCAB:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
    assert len(tokens) == N_VOCAB
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control] * len(SPECIAL) + [normal] * (N_VOCAB - len(SPECIAL)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def _byte_spelling() -> list[str]:
    """How byte-level BPE spells each byte: printable Latin-1 as itself, the rest as the code points from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def quantised(value: NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
    """[n, K] as rows of blocks: by gguf, and what that cannot by ggml, with every column as important as the others."""
    try:
        return np.asarray(gguf.quants.quantize(value, kind))
    except NotImplementedError:
        return ggml.quantized(value, int(kind), gguf.quants.quant_shape_to_byte_shape(value.shape, kind))


def _write(writer: gguf.GGUFWriter, tensors: Tensors, dtype: str, spelled_out: bool = False) -> Path:
    """Matrices in `dtype` (what gguf cannot quantise needs xllamacpp), vectors in F32, as converters do."""
    matrix_type = gguf.GGMLQuantizationType[dtype]
    name = "ALL_F32" if dtype == "F32" or spelled_out else f"MOSTLY_{dtype}"
    writer.add_file_type(next(kind for kind in gguf.LlamaFileType if kind.name.startswith(name)))
    for name, value in tensors.items():
        kind = matrix_type if value.ndim > 1 and "conv1d" not in name else gguf.GGMLQuantizationType.F32
        raw = quantised(value, kind)
        if spelled_out:
            raw, kind = gguf.quants.dequantize(raw, kind), gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = writer.path
    assert path is not None
    return Path(path)
