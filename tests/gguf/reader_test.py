"""What a valid file reads as, and that each way to break one is found and named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from luced.errors import ModelError, RequestError
from luced.gguf import header
from luced.gguf.catalogue import Catalogue
from luced.gguf.reader import open_gguf
from tests.gguf.builder import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    TYPE_Q4_0,
    U8,
    U32,
    array_entry,
    build,
    entry,
    int_entry,
    small_file,
    string,
    tensor,
    text_entry,
    u32,
    u64,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def refused(path: Path, content: bytes | None = None) -> ModelError:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    error = caught.value
    assert error.name == "bad_model_file"
    assert str(path.parent) in error.message
    return error


# ---- valid files ----


@pytest.mark.parametrize("version", [2, 3])
def test_all_kinds_of_values(path: Path, version: int) -> None:
    content = bytearray(small_file())
    content[4] = version
    path.write_bytes(content)
    with open_gguf(path) as file:
        m = file.metadata
        assert m.str("general.architecture") == "llama"
        assert [m.int(f"i{t}") for t in (0, 1, 2, 3, 4, 5, 10, 11)] == [7] * 8
        assert (m.float("f32"), m.float("f64"), m.bool("bool")) == (0.5, 0.25, True)
        assert m.ints("ints") == [-1, 0, 5]
        assert m.floats("floats") == [0.5, -2.0]
        assert m.bools("bools") == [False, True]
        assert m.strs("tokenizer.ggml.tokens") == ["a", "", "ü€😀"]


def test_tensors_and_their_bytes(path: Path) -> None:
    path.write_bytes(small_file())
    with open_gguf(path) as file:
        a, b = file.tensors["a"], file.tensors["b"]
        assert (a.type, a.dims, a.n_bytes) == ("F32", (8, 2), 64)
        assert (b.type, b.dims, b.n_bytes) == ("Q4_0", (32,), 18)
        assert bytes(file.view(a)) == bytes(range(64))
        assert bytes(file.view(b)) == bytes(range(64, 82))
        assert file.view(a).readonly
        assert path.read_bytes()[a.offset : a.offset + 4] == bytes(range(4))


def test_a_view_outlives_the_file(path: Path) -> None:
    path.write_bytes(small_file())
    with open_gguf(path) as file:
        held = np.frombuffer(file.view(file.tensors["a"]), np.uint8)
    assert held.tolist() == list(range(64))


def test_the_metadata_outlives_the_file(path: Path) -> None:
    path.write_bytes(small_file())
    with open_gguf(path) as file:
        os.truncate(path, 0)
        assert dict(file.metadata)["tokenizer.ggml.tokens"] == ["a", "", "ü€😀"]


@pytest.mark.parametrize("read_bytes", [1, 7, 30])
def test_the_header_in_small_pieces(path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int) -> None:
    path.write_bytes(small_file())
    with open_gguf(path) as file:
        expected = dict(file.metadata), file.tensors
    monkeypatch.setattr(header, "READ_BYTES", read_bytes)
    with open_gguf(path) as file:
        assert (dict(file.metadata), file.tensors) == expected


@pytest.mark.parametrize("n_bytes", [0, 24, 100, 200])
def test_a_file_that_is_cut_while_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    read = os.pread

    def cut(fd: int, n: int, at: int) -> bytes:
        if at >= n_bytes:
            os.truncate(path, n_bytes)
        return read(fd, n, at)

    monkeypatch.setattr(header, "READ_BYTES", 16)
    monkeypatch.setattr(os, "pread", cut)
    assert "was cut while it was read" in refused(path, small_file()).message


def test_a_header_that_is_too_large_is_not_read(path: Path) -> None:
    n = header.MAX_HEADER_BYTES
    path.write_bytes(build([array_entry("a", U8, [], n)]))
    os.truncate(path, n + 1000)
    assert "has a header of more than 256 MiB" in refused(path).message


def test_own_alignment(path: Path) -> None:
    entries = [int_entry("general.alignment", 128)]
    path.write_bytes(build(entries, [tensor("a", [2]), tensor("b", [2], 128)], bytes(136), alignment=128))
    with open_gguf(path) as file:
        assert [t.offset for t in file.tensors.values()] == [128, 256]


def test_no_tensors_and_no_metadata(path: Path) -> None:
    path.write_bytes(build())
    with open_gguf(path) as file:
        assert not file.tensors
        assert not file.metadata


# ---- broken files: what is said, and at which byte ----

ENTRY = text_entry("k", "v")  # the first key is at 24, its type at 33, its value at 37
AFTER = 24 + len(tensor("t", [8]))  # where the header of a file with this one tensor ends

BROKEN = {
    "empty": (b"", "0 bytes, too few", 0),
    "cut in the counts": (build()[:23], "23 bytes, too few", 0),
    "magic": (build(magic=b"GGML"), "is not GGUF", 0),
    "version 1": (build(version=1), "version 1", 4),
    "version 4": (build(version=4), "version 4", 4),
    "big-endian": (build(version=3 << 24), "big-endian", 4),
    "count of tensors": (build(n_tensors=1 << 62), "do not fit", 8),
    "count of entries": (build(n_entries=1 << 63), "do not fit", 8),
    "missing tensor": (build([text_entry("k", "v" * 30)], n_tensors=1), "truncated", 24 + 51),
    "key length": (build([u64(1 << 60) + ENTRY[8:]]), "at most 65535", 24),
    "key longer than file": (build([u64(1000) + ENTRY[8:]]), "more than the file has left", 24),
    "key not UTF-8": (build([entry(b"a\xff", U32, u32(1))]), "not UTF-8", 33),
    "value not UTF-8": (build([entry("k", STRING, string(b"ab\x80"))]), "not UTF-8", 47),
    "value length": (build([entry("k", STRING, u64((1 << 64) - 1))]), "more than the file has left", 37),
    "unknown value type": (build([entry("k", 13, u32(1))]), "unknown value type 13", 33),
    "bool 2": (build([entry("k", BOOL, b"\2")]), "bool of value 2", 37),
    "duplicate key": (build([ENTRY, ENTRY]), "appears twice", 24 + len(ENTRY)),
    "nested array": (build([array_entry("k", ARRAY, [u32(U32) + u64(0)])]), "array of arrays", 37),
    "unknown array type": (build([array_entry("k", 99, [u32(0)])]), "unknown value type 99", 37),
    "array too long": (build([array_entry("k", U32, [u32(0)], n=2)]), "more than the file has left", 41),
    "array absurdly long": (build([array_entry("k", U32, [u32(0)], n=1 << 63)]), "more than the file has left", 41),
    "string in array too long": (build([array_entry("k", STRING, [u64(9)])]), "end outside the file", 49),
    "string in array absurdly long": (build([array_entry("k", STRING, [u64((1 << 64) - 8)])]), "end outside", 49),
    "architecture no string": (build([int_entry("general.architecture", 1)]), "must be str, is int", None),
    "tokens no strings": (build([array_entry("tokenizer.ggml.tokens", F32, [u32(0)])]), r"must be [str]", None),
    "tokens no array": (build([text_entry("tokenizer.ggml.tokens", "a")]), "must be [str], is str", None),
    "alignment 0": (build([int_entry("general.alignment", 0)]), "no power of two", None),
    "alignment 48": (build([int_entry("general.alignment", 48)]), "no power of two", None),
    "alignment absurd": (
        build([int_entry("general.alignment", 1 << 31)], [tensor("t", [8])], bytes(32)),
        "truncated",
        1 << 31,
    ),
    "tensor name too long": (build([], [tensor("n" * 65, [8])], bytes(32)), "at most 64", 24),
    "tensor name not UTF-8": (build([], [tensor(b"\xc3", [8])], bytes(32)), "not UTF-8", 32),
    "duplicate tensor": (build([], [tensor("t", [8]), tensor("t", [8], 32)], bytes(64)), "appears twice", AFTER),
    "no dimensions": (build([], [tensor("t", [])], bytes(32)), "has 0 dimensions", 33),
    "five dimensions": (build([], [tensor("t", [1] * 5)], bytes(32)), "has 5 dimensions", 33),
    "dimension 0": (build([], [tensor("t", [8, 0])], bytes(32)), "size 0", 37),
    "dimension 0 hidden by another": (build([], [tensor("t", [1 << 63, 0])], bytes(32)), "size 0", 37),
    "dimensions that overflow": (build([], [tensor("t", [1 << 32, 1 << 32])], bytes(32)), "bytes, the file has", 37),
    "largest dimensions": (build([], [tensor("t", [(1 << 64) - 1] * 4)], bytes(32)), "bytes, the file has", 37),
    "unknown type": (build([], [tensor("t", [8], type_id=77)], bytes(32)), "unknown type 77", 45),
    "removed type": (build([], [tensor("t", [8], type_id=4)], bytes(32)), "unknown type 4", 45),
    "half a block": (build([], [tensor("t", [48, 2], type_id=TYPE_Q4_0)], bytes(64)), "blocks of 32", 37),
    "unaligned": (build([], [tensor("t", [8], 4)], bytes(64)), "not aligned to 32", 64 + 4),
    "outside": (build([], [tensor("t", [8], 64)], bytes(64)), "truncated", 64 + 64),
    "far outside": (build([], [tensor("t", [8], (1 << 64) - 32)], bytes(64)), "outside the file", 49),
    "one byte short": (build([], [tensor("t", [8])], bytes(31)), "truncated", 64),
    "overlap": (build([], [tensor("t", [9]), tensor("u", [8], 32)], bytes(64)), "overlaps tensor 't'", 96 + 32),
    "same place": (build([], [tensor("t", [8]), tensor("u", [8])], bytes(64)), "overlaps tensor 't'", 96),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file(path: Path, case: str) -> None:
    content, why, offset = BROKEN[case]
    error = refused(path, content)
    assert why in error.message
    assert error.data["file"] == str(path)
    assert error.data.get("offset") == offset
    if offset is not None:
        assert f"byte {offset}" in error.message


def test_the_error_names_key_or_tensor(path: Path) -> None:
    assert refused(path, build([ENTRY, ENTRY])).data["key"] == "k"
    error = refused(path, build([], [tensor("blk.0.x", [8], 64)], bytes(64)))
    assert error.data["tensor"] == "blk.0.x"
    assert "'blk.0.x'" in error.message


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    whole = small_file()
    for n in range(len(whole)):
        refused(path, whole[:n])


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.gguf").message
    assert "not a regular file" in refused(tmp_path).message
    os.mkfifo(tmp_path / "fifo.gguf")
    assert "not a regular file" in refused(tmp_path / "fifo.gguf").message
    with pytest.raises(ModelError):
        open_gguf(tmp_path / "a\0b")


# ---- arrays are decoded late, and checked then ----


def test_strings_that_are_not_utf8_are_found_when_read(path: Path) -> None:
    path.write_bytes(build([array_entry("k", STRING, [string("ok"), string(b"a\xfe")])]))
    with open_gguf(path) as file, pytest.raises(ModelError, match="string 1 is not UTF-8") as caught:
        file.metadata["k"]
    assert caught.value.data["offset"] == 24 + 9 + 4 + 12 + 10 + 8 + 1


def test_bools_that_are_none_are_found_when_read(path: Path) -> None:
    path.write_bytes(build([array_entry("k", BOOL, [b"\1", b"\7"])]))
    with open_gguf(path) as file, pytest.raises(ModelError, match="bool 1 is 7"):
        file.metadata["k"]


# ---- against gguf ----


def test_small_file_as_gguf_reads_it(path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path.write_bytes(small_file())
    compare(path, gguf.GGUFReader(path))


@pytest.mark.slow
def test_smollm2_as_gguf_reads_it() -> None:
    gguf = pytest.importorskip("gguf")
    try:
        path = Catalogue([]).find("smollm2").path
    except RequestError as error:
        pytest.skip(str(error))
    compare(path, gguf.GGUFReader(path))


def compare(path: Path, theirs) -> None:  # type: ignore[no-untyped-def]
    with open_gguf(path) as ours:
        fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert dict(ours.metadata) == fields
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        for t in theirs.tensors:
            info = ours.tensors[t.name]
            assert (info.type, list(info.dims)) == (t.tensor_type.name, t.shape.tolist())
            assert (info.offset, info.n_bytes) == (t.data_offset, t.n_bytes)
            assert bytes(ours.view(info)) == t.data.tobytes()
