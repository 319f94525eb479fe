"""Any bytes at all are a File or a ModelError, soon and in little memory."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luced.errors import ModelError
from luced.gguf.reader import open_gguf
from tests.gguf.builder import small_file

SMALL = small_file()
MAX_BYTES = 1 << 20  # opening and reading a file of 1 KB takes less than this

NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 9, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1]),
    st.integers(0, (1 << 64) - 1),
)
PLACES = st.integers(0, len(SMALL) - 1)
MUTATIONS = st.one_of(
    st.tuples(st.just("byte"), PLACES, st.integers(0, 255)),
    st.tuples(st.just("u64"), PLACES, NUMBERS),
    st.tuples(st.just("cut"), PLACES, st.just(0)),
    st.tuples(st.just("drop"), PLACES, st.integers(1, 16)),
    st.tuples(st.just("repeat"), PLACES, st.integers(1, 64)),
)


def mutate(data: bytes, kind: str, at: int, value: int) -> bytes:
    match kind:
        case "byte":
            return data[:at] + bytes([value]) + data[at + 1 :]
        case "u64":
            return data[:at] + struct.pack("<Q", value) + data[at + 8 :]
        case "cut":
            return data[:at]
        case "drop":
            return data[:at] + data[at + value :]
        case _:
            return data[: at + value] + data[at:]


def read_all(path: Path) -> None:
    """Reads all that there is in the file; what stops it must be an error that the wire can carry."""
    try:
        with open_gguf(path) as file:
            size = path.stat().st_size
            for tensor in file.tensors.values():
                assert 0 <= tensor.offset <= tensor.offset + tensor.n_bytes <= size
                assert len(file.view(tensor)) == tensor.n_bytes
            dict(file.metadata)
    except ModelError as error:
        assert error.name == "bad_model_file"  # noqa: PT017
        assert len(msgpack.packb(error.to_wire())) < 10_000  # noqa: PT017


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(MUTATIONS, min_size=1, max_size=4))
def test_mutations_of_a_small_file(tmp_path: Path, mutations: list[tuple[str, int, int]]) -> None:
    data = SMALL
    for kind, at, value in mutations:
        data = mutate(data, kind, at, value)
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        read_all(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_BYTES


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_noise_after_the_magic(tmp_path: Path, noise: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + noise)
    read_all(path)


@pytest.mark.parametrize("at", range(0, len(SMALL), 7))
def test_a_huge_number_anywhere(tmp_path: Path, at: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(mutate(SMALL, "u64", at, (1 << 64) - 1))
    read_all(path)
