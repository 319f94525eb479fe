"""Any bytes as a model file: all of it can be read, or the error says where it is wrong; soon, and in little memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path

from luced.gguf.facts import facts_of
from luced.gguf.reader import File, open_gguf
from tests.fuzz.choices import Choices, typed
from tests.gguf import builder

MAX_BYTES = 1 << 20  # that reading a file of a few KB may take
KEYS = (
    "general.architecture", "general.alignment", "general.file_type", "llama.context_length", "split.no", "split.count",
    "split.tensors.count", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "a", "b", "", "\0",
)  # fmt: skip
NAMES = ("a", "b", "token_embd.weight", "", "n" * 64, "n" * 65, "\0")


def fuzz_gguf(data: bytes) -> None:
    """The bytes as they are."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        path.write_bytes(data)
        tracemalloc.start()
        try:
            read_all(path)
            assert tracemalloc.get_traced_memory()[1] < MAX_BYTES + 64 * len(data)
        finally:
            tracemalloc.stop()


def fuzz_gguf_layout(data: bytes) -> None:
    """The bytes decide what the file has in each of its places; one or two parts of a split model."""
    choices = Choices(data)
    n_parts = 1 + choices.flag()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"model-{no:05}-of-{n_parts:05}.gguf") for no in range(1, n_parts + 1)]
        for no, path in enumerate(paths):
            path.write_bytes(_file(choices, no, n_parts))
        read_all(paths[0])


def read_all(path: Path) -> None:
    with typed("bad_model_file"):
        with open_gguf(path) as file:
            for tensor in file.tensors.values():
                assert len(file.view(tensor)) == tensor.n_bytes > 0
            _check_apart(file)
            dict(file.metadata)
        facts_of(path)


def _check_apart(file: File) -> None:
    """No byte belongs to two tensors."""
    spans = sorted((t.part, t.offset, t.n_bytes) for t in file.tensors.values())
    for (part, begin, n_bytes), (other, after, _) in pairwise(spans):
        assert part != other or begin + n_bytes <= after


def _file(choices: Choices, no: int, n_parts: int) -> bytes:
    entries = [builder.text_entry("general.architecture", "llama")]
    if n_parts > 1:
        entries += [builder.int_entry("split.no", no), builder.int_entry("split.count", n_parts)]
    entries += [_entry(choices) for _ in range(choices.below(4))]
    tensors = [_tensor(choices, no) for _ in range(choices.below(4))]
    return builder.build(
        entries,
        tensors,
        bytes(choices.pick((0, 32, 64, 82, 4096))),
        version=choices.pick((3, 3, 3, 2, 1, 0, 1 << 24)),
        n_entries=None if choices.flag() else abs(choices.number()) % (1 << 64),
        n_tensors=None if choices.flag() else abs(choices.number()) % (1 << 64),
        alignment=choices.pick((32, 1, 64)),
    )[: None if choices.flag() else choices.below(4096)]


def _entry(choices: Choices) -> bytes:
    key = choices.pick(KEYS)
    kind = choices.below(15)
    if kind == builder.STRING:
        return builder.entry(key, kind, _string(choices))
    if kind == builder.ARRAY:
        inner = choices.below(15)
        values = [_string(choices) if inner == builder.STRING else choices.take(8) for _ in range(choices.below(5))]
        return builder.array_entry(key, inner, values, None if choices.flag() else abs(choices.number()) % (1 << 64))
    return builder.entry(key, kind, choices.take(choices.pick((1, 2, 4, 8))))


def _string(choices: Choices) -> bytes:
    """With a length that may be a lie."""
    text = choices.blob()
    return builder.string(text) if choices.flag() else builder.u64(abs(choices.number()) % (1 << 64)) + text


def _tensor(choices: Choices, no: int) -> bytes:
    dims = [
        abs(choices.number()) % (1 << 64) if choices.flag() else 32 for _ in range(choices.pick((1, 2, 3, 4, 0, 5)))
    ]
    offset = abs(choices.number()) % (1 << 64) if choices.flag() else choices.below(4) * 32
    return builder.tensor(f"{choices.pick(NAMES)}{no or ''}", dims, offset, choices.pick((0, 2, 1, 12, 41, 4, 255)))
