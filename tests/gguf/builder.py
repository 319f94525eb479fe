"""GGUF files byte by byte, so that a test can break any of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALAR_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q"} | {
    F64: "d"
}
TYPE_F32, TYPE_Q4_0 = 0, 2


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def scalar(type_id: int, value: float) -> bytes:
    return struct.pack("<" + SCALAR_CODES[type_id], value)


def entry(key: str | bytes, type_id: int, payload: bytes) -> bytes:
    return string(key) + u32(type_id) + payload


def text_entry(key: str, value: str) -> bytes:
    return entry(key, STRING, string(value))


def int_entry(key: str, value: int, type_id: int = U32) -> bytes:
    return entry(key, type_id, scalar(type_id, value))


def array_entry(key: str, type_id: int, values: Sequence[bytes], n: int | None = None) -> bytes:
    return entry(key, ARRAY, u32(type_id) + u64(len(values) if n is None else n) + b"".join(values))


def tensor(name: str | bytes, dims: Sequence[int], offset: int = 0, type_id: int = TYPE_F32) -> bytes:
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


def build(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_entries: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = u64(len(tensors) if n_tensors is None else n_tensors) + u64(
        len(entries) if n_entries is None else n_entries
    )
    head = magic + u32(version) + counts + b"".join(entries) + b"".join(tensors)
    return head + (b"\0" * (-len(head) % alignment) + data if data else b"")


def small_file() -> bytes:
    """A valid file with every kind of value and two tensors: `a` F32 [8, 2], `b` Q4_0 [32]."""
    entries = [
        text_entry("general.architecture", "llama"),
        *(int_entry(f"i{t}", 7, t) for t in (U8, I8, U16, I16, U32, I32, U64, I64)),
        entry("f32", F32, scalar(F32, 0.5)),
        entry("f64", F64, scalar(F64, 0.25)),
        entry("bool", BOOL, b"\1"),
        array_entry("ints", I32, [scalar(I32, v) for v in (-1, 0, 5)]),
        array_entry("floats", F32, [scalar(F32, v) for v in (0.5, -2.0)]),
        array_entry("bools", BOOL, [b"\0", b"\1"]),
        array_entry("tokenizer.ggml.tokens", STRING, [string(s) for s in ("a", "", "ü€😀")]),
    ]
    return build(entries, [tensor("a", [8, 2]), tensor("b", [32], 64, TYPE_Q4_0)], bytes(range(64 + 18)))
