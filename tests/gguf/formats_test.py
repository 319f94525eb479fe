"""Ids and sizes against the library that defines them: ggml, as xllamacpp has it."""

from __future__ import annotations

import ctypes

import pytest

from luced.gguf import formats

N_GGML_TYPES = 43


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    xllamacpp = pytest.importorskip("xllamacpp.xllamacpp")
    library = ctypes.CDLL(xllamacpp.__file__)
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    return library


def test_formats_are_those_of_ggml(ggml: ctypes.CDLL) -> None:
    theirs = {
        i: (ggml.ggml_type_name(i).decode().upper(), ggml.ggml_blck_size(i), ggml.ggml_type_size(i))
        for i in range(N_GGML_TYPES)
        if ggml.ggml_blck_size(i)
    }
    assert {f.id: (f.name, f.block, f.block_bytes) for f in formats.FORMATS} == theirs


def test_names_and_ids_are_unique() -> None:
    assert len(formats.BY_ID) == len(formats.BY_NAME) == len(formats.FORMATS)


def test_n_bytes() -> None:
    assert formats.n_bytes("F32", (3,)) == 12
    assert formats.n_bytes("Q4_K", (512, 3)) == 6 * 144
    assert formats.n_bytes("Q8_0", (32, 5, 2)) == 10 * 34
    with pytest.raises(ValueError, match="blocks of 256"):
        formats.n_bytes("Q4_K", (128, 2))  # the total is whole blocks, a row is not
