"""luce as a process, against a fake daemon."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from luce.results import Loaded
from luce_shell.luce import PROGRAMS, SHELLS, _until
from tests.clients.fake import FakeDaemon
from tests.clients.shell import call, command, environment


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "luced.sock") as fake:
        yield fake


def luce(daemon: FakeDaemon, *words: str) -> str:
    done = call("luce", daemon.path, *words)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_ps_begins_as_ollamas(daemon: FakeDaemon) -> None:
    head, row = luce(daemon, "ps").splitlines()
    assert head.split()[:6] == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"]
    assert row[head.index("CONTEXT") :].split()[0] == "2048"
    assert row[head.index("REQUESTS") :].split()[0] == "2"
    assert row.split()[-1] == "25/100"


def test_ls(daemon: FakeDaemon) -> None:
    head, row = luce(daemon, "ls").splitlines()
    assert row.split()[0] == "fake"
    assert row[head.index("STATE") :] == "default"


def test_status(daemon: FakeDaemon) -> None:
    shown = luce(daemon, "status")
    assert "no group" in shown
    assert "starting" in shown


def test_json_is_what_the_protocol_says(daemon: FakeDaemon) -> None:
    assert json.loads(luce(daemon, "ls", "--json"))["models"][0]["context"] == 2048
    assert json.loads(luce(daemon, "ps", "--json"))["models"][0]["memory"]["weights"] == 5
    assert json.loads(luce(daemon, "status", "--json"))["socket"]["problem"] == "no group"
    assert json.loads(luce(daemon, "sockname", "--json")) == {"path": str(daemon.path)}
    assert json.loads(luce(daemon, "logs", "--json")) == {"exchanges": []}


def test_load(daemon: FakeDaemon) -> None:
    assert (
        luce(daemon, "load", "m", "--ctx", "512", "--keep-alive", "10m") == "m: 100 MiB, 512 tokens, until: Forever\n"
    )
    params = daemon.asked("load")[0].params
    assert (params["model"], params["n_ctx"], params["keep_alive"]) == ("m", 512, "10m")
    assert json.loads(luce(daemon, "load", "--json"))["name"] == "fake"


@pytest.mark.parametrize("word", ["unload", "stop"])
def test_unload(daemon: FakeDaemon, word: str) -> None:
    assert luce(daemon, word, "m") == ""
    assert json.loads(luce(daemon, word, "other", "--json")) == {"unloaded": False}
    done = call("luce", daemon.path, word, "used")
    assert (done.returncode, done.stdout) == (75, b"")
    assert b"2 requests use it" in done.stderr
    assert luce(daemon, word, "used", "--force") == ""


def test_until() -> None:
    loaded = Loaded("m", {}, 1, 0.0)
    assert [_until(replace(loaded, until=u)) for u in (None, time.time() + 299, 1.0)] == [
        "Forever",
        "4 min from now",
        "Stopping...",
    ]


def test_subscribe(daemon: FakeDaemon) -> None:
    done = call("luce", daemon.path, "subscribe", "models")
    assert daemon.asked("subscribe")[0].params == {"topics": ["models"]}
    (line,) = done.stdout.decode().splitlines()
    assert json.loads(line) == {"topic": "models", "event": "unloaded", "at": 1.5, "facts": {"model": "fake"}}
    assert (done.returncode, done.stderr.decode().splitlines()[0]) == (69, "luce: the daemon closed the connection")
    assert call("luce", daemon.path, "subscribe", "nothing").returncode == 2


def test_sockname_needs_no_daemon(tmp_path: Path) -> None:
    assert call("luce", tmp_path / "none", "sockname").stdout.decode() == f"{tmp_path}/none\n"


@pytest.mark.parametrize("words", [["ls"], ["ps"], ["status"]])
def test_no_daemon(tmp_path: Path, words: list[str]) -> None:
    done = call("luce", tmp_path / "none", *words)
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.decode().startswith("luce: no daemon listens on ")
    done = call("luce", tmp_path / "none", *words, "--json")
    assert (done.returncode, done.stderr) == (69, b"")
    assert json.loads(done.stdout)["error"]["name"] == "not_running"


def test_wrong_use(daemon: FakeDaemon) -> None:
    done = call("luce", daemon.path, "pss")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Did you mean" in done.stderr
    done = call("luce", daemon.path, "unload")
    assert done.stderr.decode().splitlines()[1] == "  luce unload --help tells how to use it"
    done = call("luce", daemon.path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"Usage: luce ")


def test_a_closed_pipe_is_not_told_of(daemon: FakeDaemon) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command("luce", "ls"), env=environment(daemon.path), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def complete(path: Path, program: str, *words: str) -> list[str]:
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    env = environment(path, COMP_WORDS="\n".join([program, *words]), COMP_CWORD=str(len(words)))
    env[variable] = "bash_complete"
    done = subprocess.run(command(program), env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return [line.partition(",")[2] for line in done.stdout.decode().split()]


def test_completion(daemon: FakeDaemon) -> None:
    assert complete(daemon.path, "luce", "s") == ["sockname", "status", "stop", "subscribe"]
    assert complete(daemon.path, "luce-ask", "-m", "FA") == ["fake"]
    assert complete(daemon.path, "luce-ask", "-o", "top") == ["top_k", "top_p"]
    assert "--cid" in complete(daemon.path, "luce-ask", "--c")


def test_completion_never_hangs_nor_complains(tmp_path: Path) -> None:
    assert complete(tmp_path / "none", "luce-ask", "-m", "") == []
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen(0)
        assert complete(tmp_path / "silent", "luce-ask", "-m", "") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts(tmp_path: Path, shell: str) -> None:
    script = call("luce", tmp_path / "none", "completion", shell).stdout.decode()
    for program in PROGRAMS:
        assert f"_{program.replace('-', '_').upper()}_COMPLETE={shell}_complete" in script


def test_completion_in_bash(daemon: FakeDaemon, tmp_path: Path) -> None:
    """The script as bash runs it: TAB after `luce-ask -m f`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "luce-ask"
    program.write_text(f'#!/bin/sh\nexec {" ".join(command("luce-ask"))} "$@"\n')
    program.chmod(0o755)
    script = call("luce", daemon.path, "completion", "bash").stdout.decode()
    script += "COMP_WORDS=(luce-ask -m f); COMP_CWORD=2; _luce_ask_completion luce-ask; echo ${COMPREPLY[@]}\n"
    env = environment(daemon.path, PATH=f"{folder}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"fake\n", b"")
