"""The commands verify and rm."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from luced.gguf.digests import path_of
from tests.gguf.builder import small_file
from tests.gguf.digests_test import damage, fetched
from tests.gguf.split_test import part


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The pull_dir of this user, with three models, one of them split; one more is in the cache of huggingface-hub."""
    folder = tmp_path / "luce" / "models"
    repo = folder / "maker" / "Tiny-GGUF"
    repo.mkdir(parents=True)
    fetched(repo / "Tiny-Q8_0.gguf", small_file())
    fetched(repo / "Tiny-Q4_0.gguf", small_file() + b"more")
    for i in (0, 1):
        fetched(folder / f"big-{i + 1:05}-of-00002.gguf", part(i, 2, "ab" if i == 0 else "cd"))
    snapshot = tmp_path / "hf" / "hub" / "models--maker--Cached" / "snapshots" / "x"
    snapshot.mkdir(parents=True)
    (snapshot / "cached.gguf").write_bytes(small_file())
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "luced", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(folder), stdin=subprocess.DEVNULL)


def environment(folder: Path) -> dict[str, str]:
    home = folder.parents[1]
    return {
        **os.environ,
        "XDG_DATA_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hf" / "hub"),
        "XDG_CONFIG_HOME": str(home),
    }


def test_verify_one_that_is_in_order(folder: Path) -> None:
    done = run(folder, "verify", "tiny:q8_0")
    assert (done.returncode, done.stdout) == (0, "Tiny-Q8_0: in order\n")


def test_verify_names_what_is_wrong(folder: Path) -> None:
    path = folder / "maker" / "Tiny-GGUF" / "Tiny-Q8_0.gguf"
    damage(path, len(small_file()) - 1)
    done = run(folder, "verify", "tiny:q8_0")
    assert done.returncode == 78
    assert f"{path}: bytes 0 to {len(small_file()) - 1} are not what was fetched" in done.stdout
    assert "  -> repair it: luced pull hf:maker/tiny:Q8_0" in done.stdout
    done = run(folder, "verify", "tiny:q8_0", "--json")
    assert done.returncode == 78
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["ranges"] == [[str(path), 0, len(small_file())]]
    assert row["checked"] == "digests"


def test_verify_all(folder: Path) -> None:
    damage(folder / "big-00002-of-00002.gguf", 200)
    events = [json.loads(line) for line in run(folder, "verify", "--json").stdout.splitlines()]
    rows = {event["name"]: event for event in events if event["event"] == "verdict"}
    assert rows["Tiny-Q4_0"]["problem"] == ""
    assert "big-00002-of-00002.gguf: bytes 0 to" in rows["big"]["problem"]
    assert "is no link to a blob" in rows["cached"]["problem"]


def test_verify_of_no_model(folder: Path) -> None:
    done = run(folder, "verify", "nosuch")
    assert done.returncode == 65
    assert "there is no model 'nosuch'" in done.stderr


def test_rm_takes_all_that_belongs_to_a_model(folder: Path) -> None:
    done = run(folder, "rm", "--yes", "big")
    assert done.returncode == 0
    assert done.stdout.startswith("removed big, ")
    assert not list(folder.glob("big*"))
    done = run(folder, "rm", "--yes", "--json", "maker/tiny:q8_0")
    row = json.loads(done.stdout)
    path = folder / "maker" / "Tiny-GGUF" / "Tiny-Q8_0.gguf"
    assert row == {"removed": [str(path), str(path_of(path))], "bytes": len(small_file())}
    assert (path.parent / "Tiny-Q4_0.gguf").exists()
    assert run(folder, "rm", "--yes", "Tiny-Q4_0").returncode == 0
    assert list(folder.iterdir()) == []


def test_rm_asks_on_a_terminal_alone(folder: Path) -> None:
    done = run(folder, "rm", "big")
    assert done.returncode == 2
    assert "luced rm --yes big" in done.stderr
    for answer, there in ((b"n\n", True), (b"y\n", False)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        command = [sys.executable, "-m", "luced", "rm", "big"]
        subprocess.run(command, stdin=theirs, capture_output=True, env=environment(folder), timeout=60)
        os.close(ours)
        os.close(theirs)
        assert (folder / "big-00001-of-00002.gguf").exists() is there


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cached", "hf cache rm model/maker/Cached"),
        ("tiny", "luced rm --yes Tiny-Q8_0"),
        ("nosuch", "`luced models` lists"),
        ("{outside}", "remove the file yourself"),
    ],
)
def test_rm_leaves_alone_what_is_not_meant_or_not_ours(folder: Path, tmp_path: Path, name: str, words: str) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(small_file())
    done = run(folder, "rm", "--yes", name.format(outside=outside))
    assert done.returncode == 65
    assert words in done.stderr
    assert outside.exists()
    assert len(list(folder.rglob("*.gguf"))) == 4


def test_rm_does_not_follow_a_folder_that_leads_elsewhere(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.gguf").write_bytes(small_file())
    (folder / "link").symlink_to(tmp_path / "other")
    assert run(folder, "rm", "--yes", "precious").returncode == 65
    assert (tmp_path / "other" / "precious.gguf").exists()
