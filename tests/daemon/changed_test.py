"""Model files that change while they are served: reports of engines that die of SIGBUS when a file that they have
mapped is cut, and of servers that go on with half of the old file and half of the new one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import luce
from luce.errors import LuceError
from tests.daemon.served import BULKY, Served
from tests.tinygguf import tiny_chat_model

PROMPT = "the model is one"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    tiny_chat_model(models / "tiny.gguf")
    tiny_chat_model(models / "other.gguf", seed=1)
    tiny_chat_model(tmp_path / "next.gguf", seed=2)
    return models


@pytest.fixture
def served(folder: Path, tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "l.sock", "--model-dir", folder, "--model", "tiny", "--threads", "1") as served:
        yield served


def ask(served: Served, model: str, max_tokens: int = 20) -> str:
    with served.client() as client:
        return begin(client, model, max_tokens).read().text


def begin(client: luce.Client, model: str, max_tokens: int) -> luce.Stream:
    """With 1500 tokens it is not over before it is read."""
    return client.complete(PROMPT, model=model, temperature=1, seed=3, max_tokens=max_tokens, **BULKY)


@pytest.mark.parametrize("n_bytes", [0, 4096])
def test_a_file_that_is_cut_ends_its_own_requests_alone(served: Served, folder: Path, n_bytes: int) -> None:
    tiny = folder / "tiny.gguf"
    whole, expected, other = tiny.read_bytes(), ask(served, "tiny"), ask(served, "other", 1500)
    with served.client() as one, served.client() as two, ThreadPoolExecutor(1) as pool:
        pieces = iter(begin(one, "tiny", 1900))
        next(pieces)
        beside = pool.submit(begin(two, "other", 1500).read)
        os.truncate(tiny, n_bytes)
        with pytest.raises(LuceError) as failure:
            list(pieces)
        assert failure.value.name == "bad_model_file"
        assert f"{tiny} has changed since tiny was loaded" in failure.value.message
        assert "rename the new one over it" in failure.value.remedy
        assert beside.result().text == other
        assert one.status().engine.restarts == 1
        assert "SIGBUS" in one.status().engine.last_failure
    with pytest.raises(LuceError, match=r"tiny\.gguf") as failure:
        ask(served, "tiny")
    assert failure.value.name == "bad_model_file"
    tiny.write_bytes(whole)
    assert ask(served, "tiny") == expected


def test_a_file_that_is_replaced_is_loaded_anew(served: Served, folder: Path, tmp_path: Path) -> None:
    expected = ask(served, "tiny", 1500)
    with served.client() as client:
        stream = begin(client, "tiny", 1500)
        pieces = iter(stream)
        next(pieces)
        os.replace(tmp_path / "next.gguf", folder / "tiny.gguf")
        with pytest.raises(LuceError) as failure:  # its prompt would have been made with another tokenizer
            ask(served, "tiny")
        assert failure.value.name == "busy"
        assert "whose file has changed since it was loaded" in failure.value.message
        list(pieces)
        assert stream.answer.text == expected
    again = ask(served, "tiny", 1500)
    assert again != expected
    assert ask(served, "tiny", 1500) == again


def test_a_file_that_is_written_over_is_loaded_anew(served: Served, folder: Path, tmp_path: Path) -> None:
    assert (tmp_path / "next.gguf").stat().st_size == (folder / "tiny.gguf").stat().st_size
    before = ask(served, "tiny")
    shutil.copy(tmp_path / "next.gguf", folder / "tiny.gguf")
    shutil.copy(tmp_path / "next.gguf", folder / "same.gguf")
    assert ask(served, "tiny") == ask(served, "same") != before


def test_a_file_that_is_removed_serves_whom_it_serves(served: Served, folder: Path) -> None:
    expected = ask(served, "tiny", 1500)
    with served.client() as client:
        stream = begin(client, "tiny", 1500)
        pieces = iter(stream)
        next(pieces)
        (folder / "tiny.gguf").unlink()
        list(pieces)
        assert stream.answer.text == expected
    with pytest.raises(LuceError) as failure:
        ask(served, "tiny")
    assert failure.value.name == "unknown_model"
