"""The tape's plan of its memory, and its readings against each other."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luced.device.values import Storage, make_value
from luced.engine.offline import chunk_of, plan_of, resident, sequence_of
from luced.engine.plan import BROKEN
from luced.gguf.reader import open_gguf
from luced.tape import Tape
from tests.tape.taps import differences
from tests.tinygguf import tiny_chat_model


@given(st.lists(st.tuples(st.integers(1, 300), st.lists(st.integers(0, 30), max_size=3)), min_size=1, max_size=30))
def test_values_that_live_together_do_not_share_memory(steps: list[tuple[int, list[int]]]) -> None:
    """Each step makes a value of some size from earlier ones."""
    tape = Tape()
    values = [make_value("input", "input", "F32", 1)]
    for n, sources in steps:
        args = {f"a{i}": values[source % len(values)] for i, source in enumerate(sources)}
        out = tape.claim(f"v{len(values)}", "F32", n, rows=None)
        tape.append("add", None, ["out"], out=out, **args)
        values.append(out)
    tape.keep(values[-1])
    offsets, total = tape.plan_activations()

    alive: dict[Storage, list[int]] = {}
    for i, call in enumerate(tape.calls):
        for v in call.values():
            if v.storage.kind == "activation":
                alive.setdefault(v.storage, []).append(i)
    for a, b in ((a, b) for a in alive for b in alive if a is not b):
        if alive[a][0] <= alive[b][-1] and alive[b][0] <= alive[a][-1]:
            assert offsets[a] + a.n_bytes <= offsets[b] or offsets[b] + b.n_bytes <= offsets[a]
    assert all(offset + s.n_bytes <= total for s, offset in offsets.items())


def test_memory_is_used_again() -> None:
    tape = Tape()
    x = make_value("input", "input", "F32", 1000)
    for i in range(100):
        out = tape.claim(f"v{i}", "F32", 1000, rows=None)
        tape.append("softcap", None, ["out"], x=x, out=out)
        x = out
    assert tape.plan_activations()[1] <= 2 * 4096


def test_one_launch_does_not_use_memory_again() -> None:
    """A device may do row 0 of the quantize while row 1 of the glu still reads its gate."""
    tape = Tape()
    gate, up, out, q = (tape.claim(name, "F32", 64, 9, rows=None) for name in ("gate", "up", "out", "q"))
    x = make_value("input", "input", "F32", 64, 9)
    tape.append("softcap", None, ["out"], x=x, out=gate)
    tape.append("softcap", None, ["out"], x=x, out=up)
    tape.append("glu", None, ["out"], gate=gate, up=up, out=out)
    tape.append("quantize", None, ["out"], x=out, out=q)
    assert len(set(tape.plan_activations()[0].values())) == 4


def test_a_row_in_the_making_is_not_written_over_by_what_meets_it() -> None:
    """Where a device makes the row in each block of the matmul, one of them may still read what it is made from."""
    tape = Tape()
    x, q, out = (tape.claim(name, "F32", 64, 9, rows=None) for name in ("x", "q", "out"))
    tape.append("softcap", None, ["out"], x=make_value("input", "input", "F32", 64, 9), out=x)
    tape.append("quantize", None, ["out"], x=x, out=q)
    tape.append("matmul", None, ["out"], x=q, out=out)
    assert len(set(tape.plan_activations()[0].values())) == 3


def test_what_an_attention_comes_from_is_not_written_over_by_it() -> None:
    """Where a device turns queries in each block of the attention, one of them may write while others still read."""
    tape = Tape()
    q, k, turned, out = (tape.claim(name, "F32", 64, 9, rows=None) for name in ("q", "k", "turned", "out"))
    tape.append("softcap", None, ["out"], x=make_value("input", "input", "F32", 64, 9), out=q)
    tape.append("softcap", None, ["out"], x=q, out=k)
    tape.append("rope", None, ["out"], x=q, out=turned)
    tape.append("kv_write", None, [], k=k, v=k)
    tape.append("attention", None, ["out"], q=turned, out=out)
    assert len(set(tape.plan_activations()[0].values())) == 4


@pytest.mark.parametrize(
    ("dtype", "kv_type", "n_embd"),
    [
        *(("F32", "f32", 64), ("Q4_1", "f32", 64), ("BF16", "f32", 64), ("MXFP4", "f32", 64)),
        *(("F32", "q4_0", 128), ("F32", "bf16/q8_0", 128)),
    ],
)
def test_every_value_of_a_step_is_the_oracles(tmp_path: Path, dtype: str, kv_type: str, n_embd: int) -> None:
    path = tiny_chat_model(tmp_path / "tiny.gguf", dtype=dtype, n_embd=n_embd)
    with resident(path, kv_type=kv_type, n_batch=64) as runner:
        s = sequence_of(runner, [(11 * i + 3) % runner.n_vocab for i in range(50)])
        runner.step(plan_of(chunk_of(runner, s, 0, 40)))
        runner.arrays.fill(plan_of(chunk_of(runner, s, 40, 10, n_out=1)))
        for d in differences(runner, runner.tape):
            assert d.max_error < 2e-5, d


def test_the_listing_has_a_line_for_each_call(tmp_path: Path) -> None:
    with resident(tiny_chat_model(tmp_path / "tiny.gguf")) as runner:
        lines = runner.tape.listing().splitlines()
    assert len(lines) == len(runner.tape.calls)
    assert "blk.1.attn_q:F32[64,512] = matmul(weight=blk.1.attn_q.weight:F32[64,64]" in runner.tape.listing()


def test_logits_that_are_no_numbers_break_their_row(tmp_path: Path) -> None:
    path = tiny_chat_model(tmp_path / "tiny.gguf")
    with open_gguf(path) as file:
        output = file.tensors["output.weight"]
    with path.open("r+b") as damaged:
        damaged.seek(output.offset)
        damaged.write(struct.pack("<f", math.nan))
    with resident(path) as runner:
        s = sequence_of(runner, [1, 2, 3])
        assert [e.finish for e in runner.step(plan_of(chunk_of(runner, s, 0, 3, n_out=1)))] == [BROKEN]
