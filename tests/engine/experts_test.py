"""Experts are read where the file is mapped: nothing of them is copied, and only those that a row chose are touched."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from luced.device.abi import Type
from luced.engine.offline import chunk_of, plan_of, resident, sequence_of
from luced.engine.runner import Runner
from tests.ops.weight_cases import weight

N_EXPERT, N_USED, E, F, N_VOCAB = 24, 2, 512, 512, 64
NEIGHBOURS = 64 << 10  # that belong to the next expert, perhaps
STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


@pytest.fixture(params=["Q8_0", "Q4_K", "F32"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A qwen3moe of one layer."""
    random = np.random.default_rng(3)
    path, kind = tmp_path / "experts.gguf", Type[request.param]
    writer = gguf.GGUFWriter(path, "qwen3moe")
    for key, value in {
        "context_length": 256,
        "embedding_length": E,
        "block_count": 1,
        "feed_forward_length": F,
    }.items():
        writer.add_uint32(f"qwen3moe.{key}", value)
    writer.add_head_count(4)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(N_VOCAB)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(N_USED)
    writer.add_tokenizer_model("none")

    def plain(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32))

    plain("token_embd.weight", N_VOCAB, E)
    for name in ("attn_q", "attn_k", "attn_v"):
        plain(f"blk.0.{name}.weight", 64, E)
    plain("blk.0.attn_output.weight", E, 64)
    plain("blk.0.ffn_gate_inp.weight", N_EXPERT, E)
    for name, n in {"blk.0.attn_norm": E, "blk.0.ffn_norm": E, "output_norm": E}.items():
        plain(f"{name}.weight", n)
    for name in ("attn_q_norm", "attn_k_norm"):
        plain(f"blk.0.{name}.weight", 16)
    for name in STACKS:
        stack = weight(random, kind, N_EXPERT * F, E).reshape(N_EXPERT, F, -1)
        dtype = gguf.GGMLQuantizationType[request.param]
        raw = stack if stack.dtype == np.float32 else stack.view(np.uint8).reshape(N_EXPERT, F, -1)
        writer.add_tensor(f"blk.0.{name}.weight", raw, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def present(runner: Runner, name: str) -> list[bool]:
    """Of each expert of a stack: whether a page well inside of it is mapped in this process."""
    stack = runner.weights[f"blk.0.{name}.weight"].rows
    begin, expert = stack.storage.pointer, stack.nb[2]
    assert expert > 2 * NEIGHBOURS
    found = []
    with open("/proc/self/pagemap", "rb") as pages:
        for x in range(N_EXPERT):
            first = -(-(begin + x * expert + NEIGHBOURS) // mmap.PAGESIZE)
            last = (begin + (x + 1) * expert - NEIGHBOURS) // mmap.PAGESIZE
            pages.seek(8 * first)
            entries = np.frombuffer(pages.read(8 * (last - first)), np.uint64)
            found.append(bool((entries >> np.uint64(63)).any()))
    return found


def evict(runner: Runner) -> None:
    """Takes the file out of memory, and has what is asked for read page by page: else the kernel maps megabytes around
    a byte that is touched, as they are in memory already."""
    with open(runner.weights.file.path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for part in runner.weights.file._parts:
        part.mapping.madvise(mmap.MADV_RANDOM)


def test_only_chosen_experts_are_touched(model: Path) -> None:
    with resident(model, n_batch=4, n_threads=2) as runner:
        kept = {s.name for s in runner.tape.storages("weight") if s.packs is not None}
        assert not [name for name in kept if "_exps" in name], "experts were packed"
        assert not any(any(present(runner, name)) for name in STACKS), "loading touched experts"
        evict(runner)
        s = sequence_of(runner, [5, 9])
        before: set[int] = set()
        for i in range(2):
            runner.step(plan_of(chunk_of(runner, s, i, 1, n_out=i)))
            touched = [{x for x, there in enumerate(present(runner, name)) if there} for name in STACKS]
            assert touched[0] == touched[1] == touched[2], "gate, up and down are of the same experts"
            assert before <= touched[0]
            assert len(before) < len(touched[0]) <= len(before) + N_USED
            before = touched[0]
