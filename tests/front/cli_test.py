"""The command `luced`, without a daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tinygguf import tiny_chat_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny.gguf").parent


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "luced", *map(str, arguments)], capture_output=True, text=True)


def test_models_are_aligned_columns_in_a_pipe(folder: Path) -> None:
    done = run("models", "--model-dir", folder)
    head, *rows = [line for line in done.stdout.splitlines() if line.startswith(("name", "tiny"))]
    (row,) = rows
    assert row.split()[:3] == ["tiny", "llama", "F32"]
    assert row.index("llama") == head.index("architecture")


def test_models_as_json(folder: Path) -> None:
    rows = {
        row["name"]: row for row in map(json.loads, run("models", "--json", "--model-dir", folder).stdout.splitlines())
    }
    assert rows["tiny"]["path"] == str(folder / "tiny.gguf")
    assert rows["tiny"]["context"] == 2048
    assert rows["tiny"]["problem"] == ""


def test_check_says_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes((folder / "tiny.gguf").read_bytes()[:-9])
    assert run("models", "--check", "--model-dir", folder).returncode == 0
    done = run("models", "--check", "--model-dir", tmp_path)
    assert done.returncode == 78
    assert "truncated" in done.stdout


def test_architectures_come_from_their_table() -> None:
    done = run("models", "--architectures")
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {"llama", "qwen3", "gemma3"}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("logits", "nosuch", "--tokens", "1", "--out", "x.npy"), 65, "there is no model 'nosuch'"),
        (("logits", "tiny", "--tokens", "one", "--out", "x.npy"), 2, "'one' is no list of whole numbers"),
        (("logits", "tiny", "--tokens", "1", "--out", "/nonexistent/x.npy"), 2, "/nonexistent is no folder"),
        (("bench", "tiny", "-p", "-5"), 2, "whole numbers"),
        (("serve", "--kv", "q3"), 2, "q3"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_errors_name_the_thing_and_the_remedy(arguments: tuple[str, ...], status: int, words: str) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_imports_nothing_that_takes_long() -> None:
    script = "import sys, luced.cli; print(*{'trio', 'numpy', 'rich', 'jinja2', 'tokenizers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == ""
    assert done.returncode == 0


def test_a_closed_pipe_is_not_told_of(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "luced", "models", "--model-dir", str(folder)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
