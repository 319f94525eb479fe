"""Files that say the same in other words, as one converter or another writes them; and what is not implemented, which
must be an error and never another answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from luced.engine.offline import logits
from luced.errors import ModelError
from tests.models.cases import CASES, GOLDENS
from tests.models.parity_test import assert_near, golden
from tests.tinygguf import Tensors, with_tensors

Change = Callable[[Tensors], None]


def fused(part: str, *others: str) -> Change:
    """Matrices side by side in one."""

    def change(t: Tensors) -> None:
        for name in [name for name in t if f".{part}." in name]:
            parts = [t.pop(name), *(t.pop(name.replace(part, other)) for other in others)]
            whole = "ffn_gate_up_exps" if part == "ffn_gate_exps" else "attn_qkv"
            t[name.replace(part, whole)] = np.concatenate(parts, axis=-2)

    return change


def parted(t: Tensors) -> None:
    for name in [name for name in t if "ffn_gate_up_exps" in name]:
        for part, half in zip(("gate", "up"), np.split(t.pop(name), 2, axis=1), strict=True):
            t[name.replace("gate_up", part)] = half.copy()


def added(name: str, *shape: int) -> Change:
    return lambda t: t.update({name: np.ones(shape, np.float32)})


def gone(name: str) -> Change:
    def change(t: Tensors) -> None:
        del t[name]

    return change


def written(name: str, path: Path, keys: dict[str, Any], change: Change | None) -> Path:
    """The golden file with other keys (None: without) and tensors."""
    source = gguf.GGUFReader(GOLDENS / f"{name}.gguf")
    tensors = {tensor.name: np.array(tensor.data) for tensor in source.tensors}
    if change:
        change(tensors)
    return with_tensors(source, path, tensors, {f"{CASES[name].architecture}.{key}": v for key, v in keys.items()})


@pytest.mark.parametrize(
    ("name", "keys", "change"),
    [
        *((name, {}, fused("ffn_gate_exps", "ffn_up_exps")) for name in ("qwen3moe", "qwen35moe", "laguna")),
        *((name, {}, fused("ffn_gate_exps", "ffn_up_exps")) for name in ("qwen3next", "deepseek4")),
        ("gemma4_moe", {}, parted),
        ("qwen2", {"attention.key_length": None, "attention.value_length": None}, None),
        (
            "llama",
            {"rope.dimension_count": None, "attention.head_count": [4, 4], "attention.head_count_kv": [2, 2]},
            None,
        ),
        ("llama", {"feed_forward_length": [56, 56], "rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ("llama_multihead", {"attention.head_count_kv": None}, None),
        ("qwen3moe", {"expert_weights_scale": 0.0, "expert_shared_count": 0, "expert_weights_norm": True}, None),
        ("qwen3moe", {"expert_weights_scale": 1.0, "expert_group_count": 1, "expert_group_used_count": 1}, None),
        ("laguna", {"expert_gating_func": None, "expert_weights_norm": None, "leading_dense_block_count": None}, None),
        ("laguna", {"expert_shared_count": 1}, None),
        ("qwen35", {"attention.recurrent_layers": [True, False, True, False, True, False]}, None),
        ("gemma3", {"attention.sliding_window_pattern": 6}, None),
        ("gemma4_e", {"attention.head_count_kv": 2, "embedding_length_per_layer_input": None}, None),
        ("deepseek4", {"attention.compress_ratios": [4, 128, 0, 4, 0], "swiglu_clamp_exp": 2.0}, None),
        ("deepseek4", {"nextn_predict_layers": 0}, None),
        ("llama", {}, lambda t: t.update({"output.weight": t["token_embd.weight"].copy()})),
    ],
)
def test_the_same_in_other_words(name: str, keys: dict[str, Any], change: Change | None, tmp_path: Path) -> None:
    _, ids, expected = golden(name)
    assert_near(logits(written(name, tmp_path / "m.gguf", keys, change), ids), expected, CASES[name].tolerance)


@pytest.mark.parametrize(
    ("name", "keys", "change", "what"),
    [
        *((name, {}, fused("attn_q", "attn_k", "attn_v"), "attn_q.weight") for name in ("llama", "qwen3")),
        ("llama", {"attention.head_count_kv": [2, 1]}, None, "one number of key heads"),
        ("llama", {"rope.scaling.type": "longrope"}, None, "longrope"),
        ("llama", {}, added("rope_factors_long.weight", 6), "rope_factors_long"),
        ("llama", {}, added("rope_freqs.weight", 4), "contradict"),
        ("llama", {}, added("blk.0.attn_q_norm.weight", 12), "attn_q_norm"),
        ("llama", {}, added("blk.0.ffn_norm.bias", 40), "ffn_norm.bias"),
        *(("llama", {key: 0.5}, None, key) for key in ("attention.clamp_kqv", "logit_scale", "residual_scale")),
        *(("llama", {key: 0.5}, None, key) for key in ("embedding_scale", "attention.temperature_scale")),
        ("qwen2", {}, added("rope_freqs.weight", 5), "rope_freqs"),
        ("qwen3", {"attention.sliding_window": 8}, None, "sliding_window"),
        ("qwen3", {"final_logit_softcapping": 5.0}, None, "softcapping"),
        ("qwen3", {}, added("cls.output.weight", 1, 40), "cls.output"),
        ("gemma3", {}, gone("blk.0.post_ffw_norm.weight"), "is missing"),
        ("gemma3", {"attn_logit_softcapping": 5.0}, None, "softcapping"),
        ("gemma4", {"attention.shared_kv_layers": 6}, None, "share the keys"),
        ("qwen3moe", {"interleave_moe_layer_step": 2}, None, "interleave_moe"),
        ("qwen3moe", {"expert_gating_func": 9}, None, "expert_gating_func"),
        ("qwen3moe", {"expert_count": 0}, None, "without experts"),
        ("qwen35", {"mrope_sections": [1, 1, 1, 0]}, None, "mrope_sections"),
        ("qwen35", {"ssm.group_count": 1}, None, "shapes"),
        ("laguna", {}, added("blk.0.attn_sinks.weight", 4), "attn_sinks"),
        ("laguna", {"rope.scaling.yarn_ext_factor": 0.5}, None, "extrapolation"),
        ("laguna", {"rope.scaling.yarn_log_multiplier": 0.1}, None, "yarn_log_multiplier"),
        ("deepseek4", {"nextn_predict_layers": 1, "block_count": 5}, None, "multi-token prediction"),
    ],
)
def test_what_is_not_implemented_is_an_error(
    name: str, keys: dict[str, Any], change: Change | None, what: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=what) as refused:
        logits(written(name, tmp_path / "m.gguf", keys, change), [1])
    assert refused.value.name in ("unsupported_model", "bad_model_file")


@pytest.mark.parametrize("keys", [{"rope.scaling.factor": 4.0}, {"rope.scale_linear": 4.0}])
def test_a_factor_of_no_named_kind_is_linear(keys: dict[str, Any], tmp_path: Path) -> None:
    ids = golden("qwen3")[1]
    named = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    expected = logits(written("qwen3", tmp_path / "named.gguf", named, None), ids)
    assert np.array_equal(logits(written("qwen3", tmp_path / "m.gguf", keys, None), ids), expected)
    assert not np.array_equal(logits(GOLDENS / "qwen3.gguf", ids), expected)
