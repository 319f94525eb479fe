"""luced bench, as a user calls it, with a stand-in for llama-bench."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from luced.cli import peer as llama_bench
from luced.engine.speed import Work
from luced.errors import RequestError
from tests.tinygguf import tiny_chat_model

PEER = f"""#!{sys.executable}
import json, sys
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rows = [(int(n), 0) for n in args["-p"].split(",")] + [(0, int(n)) for n in args["-n"].split(",")]
print(json.dumps([
    dict(n_prompt=p, n_gen=g, n_depth=int(args["-d"]), avg_ts=1000 * p + g + int(args["-d"]) / 1000)
    for p, g in rows if p or g
]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "luced", "bench", "--device", "cpu", "--threads", "1", "-r", "1"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)


def test_a_table_beside_a_peer(model: Path, tmp_path: Path) -> None:
    peer = script(tmp_path / "llama-bench", PEER)
    done = bench(model, "-p", "8", "-n", "4", "--depth", "0,16", "--batch", "1,2", "--peer", peer)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["model", "threads", "test", "tokens/s", "llama.cpp", "ratio", "of", "the", "floor"]
    tests = {row[head.index("test") : head.index("tokens/s")].strip(): row for row in rows}
    assert list(tests) == ["pp8", "pp8 @16", "tg4", "tg4 x2", "tg4 @16", "tg4 x2 @16"]
    assert " 8000.00 " in tests["pp8"]
    assert " 4.02 " in tests["tg4 @16"]
    assert tests["tg4"].endswith("%")
    assert not tests["tg4 x2"][head.index("llama.cpp") : head.index("of the floor")].strip()
    assert "a copy moves" in done.stderr
    assert "no energy is measured: cpu has no counter" in done.stderr


def test_json(model: Path, tmp_path: Path) -> None:
    peer = script(tmp_path / "llama-bench", PEER)
    done = bench(model, "-p", "0", "-n", "4", "--batch", "1,2", "--peer", peer, "--json")
    one, two = map(json.loads, done.stdout.splitlines())
    assert (one["model"], one["device"], one["test"], one["n_rows"]) == ("tiny", "cpu", "tg4", 1)
    assert one["peer_tok_s"] == 4
    assert one["ratio"] == one["tok_s"] / 4
    assert one["share_of_floor"] == one["tok_s"] / one["floor_tok_s"]
    assert (two["n_rows"], two["peer_tok_s"], two["ratio"], two["j_per_token"]) == (2, None, None, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#!/bin/sh\necho loading >&2; echo 'no such model' >&2; exit 3", "ended with status 3: no such model"),
        ("#!/bin/sh\nkill -SEGV $$", "ended with status -11: it says nothing"),
        ("#!/bin/sh\necho hello", "printed what llama-bench does not: 'hello"),
        ("#!/bin/sh\necho '[{}]'", "printed what llama-bench does not"),
        ("#!/bin/sh\necho '[7]'", "printed what llama-bench does not"),
        ("#!/nonexistent", "cannot be run: No such file"),
        ("\x7fELF", "cannot be run: Exec format error"),
    ],
)
def test_a_peer_that_fails(text: str, says: str, model: Path, tmp_path: Path) -> None:
    done = bench(model, "-p", "1", "-n", "1", "--peer", script(tmp_path / "peer", text))
    assert done.returncode == 65
    assert f"--peer {tmp_path / 'peer'} {says}" in done.stderr
    assert "run it by hand" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--peer", "/nonexistent/llama-bench"), 2, "does not exist"),
        (("--peer", "/etc/passwd"), 2, "is not executable"),
        (("--peer", "/tmp"), 2, "is a directory"),
        (("--depth", "2000"), 65, "512 tokens after 2000 do not fit in a context of 2048"),
        (("--batch", "0"), 2, "a step has one row at least"),
        (("--batch", "100"), 65, "at most 64 sequences, not 100"),
        (("-p", "0", "-n", "0"), 2, "nothing to measure"),
    ],
)
def test_what_cannot_be(arguments: tuple[str, ...], status: int, words: str, model: Path) -> None:
    done = bench(model, *arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_no_such_model(tmp_path: Path) -> None:
    done = bench("nosuch", "--peer", script(tmp_path / "llama-bench", PEER))
    assert done.returncode == 65
    assert "there is no model 'nosuch'" in done.stderr


class Device:
    name, n_threads = "cuda:1", 1


def test_the_peer_has_the_same_gpu_alone() -> None:
    args = llama_bench.command(Path("/x/llama-bench"), Path("m.gguf"), {"pp": [], "tg": [128]}, 7, Device(), 3)  # type: ignore[arg-type]
    words = " ".join(args)
    assert "-ngl 99 -sm none -mg 1 -fa 1 -p 0 -n 128 -d 7 -r 3 -o json" in words


def test_rows_of_several_sequences_are_not_asked_for(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert llama_bench.run(gone, Path("m"), [Work("tg", 4, 0, 2)], Device(), 1) == {}  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="cannot be run"):
        llama_bench.run(gone, Path("m"), [Work("tg", 4)], Device(), 1)  # type: ignore[arg-type]
