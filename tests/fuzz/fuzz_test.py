"""Every target of tests.fuzz on its kept corpus, on mutations of it, and on noise: always the same ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import CORPUS, TARGETS, corpus
from tests.gguf.builder import small_file

KEPT = [pytest.param(target, path, id=f"{target}-{path.name}") for target in TARGETS for path in corpus(target)]
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 9, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1]),
    st.integers(0, (1 << 64) - 1),
)
PLACES = st.integers(0, 1 << 12)
MUTATIONS = st.one_of(
    st.tuples(st.just("byte"), PLACES, st.integers(0, 255)),
    st.tuples(st.just("u64"), PLACES, NUMBERS),
    st.tuples(st.just("cut"), PLACES, st.just(0)),
    st.tuples(st.just("drop"), PLACES, st.integers(1, 16)),
    st.tuples(st.just("repeat"), PLACES, st.integers(1, 64)),
)


def mutate(data: bytes, kind: str, at: int, value: int) -> bytes:
    at %= len(data) + 1
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


@pytest.mark.parametrize("at", range(0, len(small_file()), 7))
def test_a_huge_number_anywhere_in_a_model_file(at: int) -> None:
    TARGETS["gguf"](mutate(small_file(), "u64", at, (1 << 64) - 1))


def test_every_corpus_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize(("target", "path"), KEPT)
def test_kept(target: str, path: Path) -> None:
    TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=80)
@given(st.data())
def test_mutations(target: str, draw: st.DataObject) -> None:
    data = draw.draw(st.sampled_from(corpus(target))).read_bytes()
    for kind, at, value in draw.draw(st.lists(MUTATIONS, min_size=1, max_size=4)):
        data = mutate(data, kind, at, value)
    TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=80)
@example(b"")
@given(st.binary(max_size=300))
def test_noise(target: str, data: bytes) -> None:
    TARGETS[target](data)
