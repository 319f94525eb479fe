"""Tiny GGUF files: a whole chat model with random weights, and how one is written. HF models: hfgguf.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests import ggml

Tensors = dict[str, NDArray[np.float32]]

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
    return write(writer, tensors, dtype, spelled_out)


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


def write(writer: gguf.GGUFWriter, tensors: Tensors, dtype: str, spelled_out: bool = False) -> Path:
    """Matrices in `dtype` (what gguf cannot quantise needs xllamacpp), vectors in F32, as converters do."""
    matrix_type = gguf.GGMLQuantizationType[dtype]
    name = "ALL_F32" if dtype == "F32" or spelled_out else f"MOSTLY_{dtype}"
    writer.add_file_type(next(kind for kind in gguf.LlamaFileType if kind.name.startswith(name)))
    for name, value in tensors.items():
        if value.dtype == np.int32:
            writer.add_tensor(name, value)
            continue
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


def with_tensors(source: gguf.GGUFReader, path: Path, tensors: Tensors, keys: Mapping[str, Any] | None = None) -> Path:
    """A file with the metadata of another, but for some keys; None: without this one."""
    architecture = source.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    keys = keys or {}
    for key, field in source.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture" and key not in keys:
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for key, value in keys.items():
        if value is not None:
            kind, inner = (gguf.GGUFValueType.get_type(v) for v in (value, value[0] if isinstance(value, list) else 0))
            writer.add_key_value(key, value, kind, inner)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
