"""Models of several files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from luced.errors import ModelError
from luced.gguf.reader import open_gguf
from tests.gguf.builder import U16, build, int_entry, tensor, text_entry


def part(no: int, n: int, names: str, n_tensors: int = 4, **changed: int) -> bytes:
    """Part `no` of `n`, with one tensor F32 [8] for each letter of `names`, filled with that letter."""
    values = {"split.no": no, "split.count": n, "split.tensors.count": n_tensors} | changed
    entries = [int_entry(key, value, U16) for key, value in values.items() if value >= 0]
    if no == 0:
        entries.append(text_entry("general.architecture", "llama"))
    tensors = [tensor(name, [8], 32 * i) for i, name in enumerate(names)]
    return build(entries, tensors, b"".join(32 * name.encode() for name in names))


def write(folder: Path, parts: Sequence[bytes]) -> list[Path]:
    paths = [folder / f"m-{i:05}-of-{len(parts):05}.gguf" for i in range(1, len(parts) + 1)]
    for path, content in zip(paths, parts, strict=True):
        path.write_bytes(content)
    return paths


def refused(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    return caught.value


def test_parts_are_one_model(tmp_path: Path) -> None:
    paths = write(tmp_path, [part(0, 3, "ab"), part(1, 3, "c"), part(2, 3, "d")])
    with open_gguf(paths[0]) as file:
        assert file.paths == paths
        assert {name: (t.part, bytes(file.view(t))) for name, t in file.tensors.items()} == {
            "a": (0, b"a" * 32),
            "b": (0, b"b" * 32),
            "c": (1, b"c" * 32),
            "d": (2, b"d" * 32),
        }


def test_one_part_of_one(tmp_path: Path) -> None:
    (tmp_path / "any name.gguf").write_bytes(part(0, 1, "abcd"))
    with open_gguf(tmp_path / "any name.gguf") as file:
        assert list(file.tensors) == list("abcd")


def test_missing_part_is_named(tmp_path: Path) -> None:
    paths = write(tmp_path, [part(0, 3, "ab"), part(1, 3, "c"), part(2, 3, "d")])
    paths[1].unlink()
    assert "m-00002-of-00003.gguf is missing" in refused(paths[0]).message


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    paths = write(tmp_path, [part(0, 2, "ab"), part(1, 2, "cd")])
    assert "open m-00001-of-00002.gguf" in refused(paths[1]).message


def test_a_name_that_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(part(0, 2, "ab"))
    assert "not named" in refused(tmp_path / "m.gguf").message
    write(tmp_path, [part(0, 7, "ab"), part(1, 7, "cd")])
    assert "one of 7 parts, but is not named" in refused(tmp_path / "m-00001-of-00002.gguf").message


@pytest.mark.parametrize(
    ("second", "key"),
    [
        (part(1, 2, "cd", **{"split.no": 0}), "split.no"),
        (part(1, 2, "cd", **{"split.count": 3}), "split.count"),
        (part(1, 2, "cd", **{"split.no": -1}), "split.no"),
        (part(1, 2, "cde"), "split.tensors.count"),
        (part(1, 2, "c"), "split.tensors.count"),
    ],
)
def test_parts_that_contradict_each_other(tmp_path: Path, second: bytes, key: str) -> None:
    assert refused(write(tmp_path, [part(0, 2, "ab"), second])[0]).data["key"] == key


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    paths = write(tmp_path, [part(0, 2, "ab"), part(1, 2, "bc")])
    error = refused(paths[0])
    assert (error.data["tensor"], error.data["file"]) == ("b", str(paths[1]))


def test_a_broken_part_is_named(tmp_path: Path) -> None:
    paths = write(tmp_path, [part(0, 2, "ab"), part(1, 2, "cd")[:-1]])
    assert refused(paths[0]).data["file"] == str(paths[1])
