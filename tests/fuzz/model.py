"""A model file with something wrong in its metadata or tensors: it answers, or the error says why it cannot."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from luced.device.cpu import Cpu
from luced.engine import loader, offline
from luced.errors import EngineError
from luced.gguf import formats
from luced.gguf.reader import open_gguf
from tests.fuzz.choices import Choices, typed
from tests.gguf import builder

GOLDENS = Path(__file__).parent.parent / "models" / "goldens"
CACHE_BYTES = 1 << 22
MAX_TENSOR_BYTES = 1 << 26
INTEGERS = (0, 1, 2, 3, 5, 8, 31, 64, 100, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-30, 1e30, float("inf"), float("nan"))

Tensor = tuple[str, tuple[int, ...], bytes]  # type, dims, data


def fuzz_model(data: bytes) -> None:
    choices = Choices(data)
    values, tensors = choices.pick([golden(path) for path in golden_paths()])
    values, tensors = dict(values), dict(tensors)
    for _ in range(1 + choices.below(3)):
        if choices.flag():
            _change_value(values, choices)
        else:
            _change_tensor(tensors, choices)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        path.write_bytes(file_of(values, tensors))
        with typed("bad_model_file", "unsupported_model", "no_memory", "context_too_long"):
            _run(path)


def _run(path: Path) -> None:
    device = Cpu(n_threads=1)
    try:
        slices = loader.load(path, device, loader.Wants(n_batch=16, cache_bytes=CACHE_BYTES))
        runner = offline.drain(slices)
        try:
            s = offline.sequence_of(runner, [0, runner.n_vocab - 1, 1 % runner.n_vocab])
            (emitted,) = runner.step(offline.plan_of(offline.chunk_of(runner, s, 0, 3, n_out=1)))
            assert 0 <= emitted.token < runner.n_vocab
        except EngineError as error:
            raise AssertionError(error.message) from error
        finally:
            runner.close()
    finally:
        device.close()


@cache
def golden_paths() -> list[Path]:
    """One model of each architecture."""
    by_architecture: dict[str, Path] = {}
    for path in sorted(GOLDENS.glob("*.gguf")):
        with open_gguf(path) as file:
            by_architecture.setdefault(file.metadata.str("general.architecture"), path)
    return list(by_architecture.values())


@cache
def golden(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Its metadata and tensors, without a vocabulary."""
    with open_gguf(path) as file:
        values = {k: v for k, v in file.metadata.items() if not k.startswith("tokenizer.")}
        return values, {t.name: (t.type, t.dims, bytes(file.view(t))) for t in file.tensors.values()}


def _change_value(values: dict[str, Any], choices: Choices) -> None:
    key = choices.pick(sorted(values))
    old = values[key]
    match choices.below(4):
        case 0:
            del values[key]
        case 1:
            values[key] = choices.pick(INTEGERS)
        case 2:
            values[key] = choices.pick(FLOATS)
        case _:
            values[key] = [old] * choices.below(9) if choices.flag() and not isinstance(old, list) else choices.flag()
    if choices.below(8) == 7:
        values[f"{values.get('general.architecture')}.{choices.pick(MORE_KEYS)}"] = choices.pick(MORE_VALUES)


MORE_KEYS = (
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "attention.scale", "attention.key_length", "attention.value_length", "attention.sliding_window", "pooling_type",
    "attention.sliding_window_pattern", "final_logit_softcapping", "vocab_size", "expert_count", "rope.dimension_count",
)  # fmt: skip
MORE_TENSORS = ("rope_freqs.weight", "output.weight", "output.bias", "blk.0.attn_q.bias")
MORE_VALUES: tuple[Any, ...] = ("yarn", "linear", "none", *INTEGERS, *FLOATS, [True], [], [1.5])


def _change_tensor(tensors: dict[str, Tensor], choices: Choices) -> None:
    name = choices.pick(sorted(tensors))
    kind, dims, data = tensors.pop(name)
    match choices.below(6):
        case 0:
            pass  # it is gone
        case 1:
            tensors[choices.pick((*MORE_TENSORS, name + "x"))] = (kind, dims, data)
        case 2:
            _add(tensors, name, kind, tuple(choices.pick((1, 2, 31, 32, 64, 256)) for _ in range(1 + choices.below(4))))
        case 3:
            _add(tensors, name, choices.pick([f.name for f in formats.FORMATS]), dims)
        case 4:
            _add(tensors, name, kind, dims[::-1] if choices.flag() else (*dims, 2))
        case _:
            noise = np.resize(np.frombuffer(choices.blob() or b"\xff", np.uint8), len(data))
            tensors[name] = (kind, dims, noise.tobytes())


def _add(tensors: dict[str, Tensor], name: str, kind: str, dims: tuple[int, ...]) -> None:
    """Of zeros, if such a tensor can be; one of gigabytes would tell of this process's memory alone."""
    with suppress(ValueError):
        if (n_bytes := formats.n_bytes(kind, dims)) <= MAX_TENSOR_BYTES:
            tensors[name] = (kind, dims, bytes(n_bytes))


def file_of(values: dict[str, Any], tensors: dict[str, Tensor], alignment: int = 32) -> bytes:
    entries = [_entry(key, value) for key, value in values.items()]
    infos, data = [], b""
    for name, (kind, dims, content) in tensors.items():
        infos.append(builder.tensor(name, dims, len(data), formats.BY_NAME[kind].id))
        data += content + bytes(-len(content) % alignment)
    return builder.build(entries, infos, data, alignment=alignment)


def _entry(key: str, value: Any) -> bytes:
    if isinstance(value, list):
        kind = _kind(value[0]) if value else builder.U32
        return builder.array_entry(key, kind, [_ENCODERS[kind](v) for v in value])
    kind = _kind(value)
    return builder.entry(key, kind, _ENCODERS[kind](value))


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return builder.BOOL
    if isinstance(value, int):
        return builder.U32 if 0 <= value < 1 << 32 else builder.I64
    return builder.F32 if isinstance(value, float) else builder.STRING


_ENCODERS: dict[int, Callable[[Any], bytes]] = {
    builder.BOOL: lambda v: bytes([v]),
    builder.U32: lambda v: builder.scalar(builder.U32, v),
    builder.I64: lambda v: builder.scalar(builder.I64, v),
    builder.F32: lambda v: builder.scalar(builder.F32, v),
    builder.STRING: builder.string,
}
