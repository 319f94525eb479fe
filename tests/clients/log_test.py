"""The conversation log: what it keeps, for whom, and that no trouble of its own costs an answer."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from luce_shell import log
from tests.clients.fake import FakeDaemon
from tests.clients.shell import call, environment


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "luced.sock") as fake:
        yield fake


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data/luce/logs.db"


def exchange(conversation: str = "c1", question: str = "why?", seed: int = 1) -> log.Exchange:
    return log.Exchange(conversation, 1.5, "m", None, question, "because", "stop", {"top_k": 3}, seed, 9, 4, 2, 0.5)


def test_what_is_written_is_read(database: Path) -> None:
    first, second, third = exchange(seed=(1 << 64) - 1), exchange("c2"), exchange(question="and?")
    for each in (first, second, third):
        log.write(each)
    assert log.last_exchanges(2) == [second, third]
    assert log.conversation(None) == log.conversation("c1") == [first, third]
    assert log.conversation("%") == log.conversation("c9") == []
    assert [(c.id, c.n_exchanges, c.question) for c in log.conversations(9)] == [("c1", 2, "why?"), ("c2", 1, "why?")]
    with pytest.raises(log.LogError, match="2 conversations"):
        log.conversation("c")


def test_it_is_its_owners_alone(database: Path) -> None:
    old = os.umask(0)
    try:
        log.write(exchange())
    finally:
        os.umask(old)
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700
    database.chmod(0o644)
    log.write(exchange())
    assert stat.S_IMODE(database.stat().st_mode) == 0o600


def test_two_may_write(database: Path) -> None:
    log.write(exchange())
    with sqlite3.connect(database) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM exchanges").fetchone()
        log.write(exchange())  # a reader is in nobody's way
    other.close()
    assert len(log.last_exchanges(9)) == 2


def test_ids_sort_by_time() -> None:
    ids = [log.new_conversation() for _ in range(50)]
    assert len(set(ids)) == 50
    assert [i[:11] for i in ids] == sorted(i[:11] for i in ids)


def test_continue(daemon: FakeDaemon, database: Path) -> None:
    call("luce-ask", daemon.path, "-s", "short", "-m", "small", "-o", "seed", "7", "first")
    call("luce-ask", daemon.path, "another")
    call("luce-ask", daemon.path, "--cid", log.conversations(2)[1].id[:-1], "second")
    done = call("luce-ask", daemon.path, "-c", "-n", "third")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"third\n", b"")
    said = ["short", "first", "first", "second", "second", "third"]
    params = daemon.asked("chat")[-1].params
    assert [m["content"] for m in params["messages"]] == said
    assert [m["role"] for m in params["messages"]] == ["system", *["user", "assistant"] * 2, "user"]
    assert params["model"] == "small"
    assert [e.question for e in log.conversation(None)] == ["first", "second"]  # -n leaves no trace
    assert log.conversation(None)[0].options == {"seed": 7}


def test_nothing_to_continue(daemon: FakeDaemon, database: Path) -> None:
    done = call("luce-ask", daemon.path, "-c", "more")
    assert (done.returncode, done.stdout) == (65, b"")
    assert b"no conversation to go on with" in done.stderr
    assert not database.exists()


def broken(database: Path, how: str) -> None:
    database.parent.mkdir(parents=True)
    match how:
        case "corrupt":
            database.write_bytes(b"no database at all, whatever its name may say" * 100)
        case "newer":
            connection = sqlite3.connect(database)
            connection.execute("PRAGMA user_version = 99")
            connection.close()
        case "a folder":
            database.mkdir()
        case "a link":
            database.symlink_to(database.parent / "elsewhere")
        case "read-only":
            database.parent.rmdir()
            database.parent.parent.rmdir()
            database.parent.parent.symlink_to("/proc/self")  # where nobody can make a folder


@pytest.mark.parametrize("how", ["corrupt", "newer", "a folder", "a link", "read-only"])
def test_trouble_costs_one_line_and_no_answer(daemon: FakeDaemon, database: Path, how: str) -> None:
    broken(database, how)
    done = call("luce-ask", daemon.path, "hello")
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"luce-ask: the conversation is not logged: {database}: ")
    assert line.endswith("; with -n there is no log")
    if how not in ("read-only", "a link"):
        done = call("luce-ask", daemon.path, "-c", "more")
        assert (done.returncode, done.stdout) == (74, b"")
        assert call("luce", daemon.path, "logs").returncode == 74


def test_one_without_an_end(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that makes rows for ever."""
    monkeypatch.setattr(log, "MAX_STEPS", 1 << 20)
    log.write(exchange())
    with sqlite3.connect(database) as other:
        row = ", ".join(f"'' AS {name}" for name in log.COLUMNS.split(", "))
        other.execute("DROP TABLE exchanges")
        endless = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)"
        other.execute(f"CREATE VIEW exchanges AS {endless} SELECT id, {row} FROM n")
    other.close()
    for read in (lambda: log.last_exchanges(3), lambda: log.conversation(None), lambda: log.conversations(3)):
        with pytest.raises(log.LogError, match="it cannot be read in a reasonable time"):
            read()


def test_a_full_disk(daemon: FakeDaemon, database: Path) -> None:
    script = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
    script += "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    script += "sys.argv = ['luce-ask', 'hello']; from luce_shell.ask import main; main()"
    env = environment(daemon.path)
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert done.stderr.count(b"\n") == 1


def test_a_locked_one(daemon: FakeDaemon, database: Path) -> None:
    log.write(exchange())
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    done = call("luce-ask", daemon.path, "hello")
    other.close()
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert b"database is locked" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_luce_logs(daemon: FakeDaemon, database: Path) -> None:
    for question in ("one", "more\nlines", "three \x1b[2J", "four"):
        call("luce-ask", daemon.path, question)
    shown = call("luce", daemon.path, "logs").stdout.decode()
    assert "> one" not in shown
    assert "> more\n> lines\n\nmore\nlines\n" in shown
    assert "\x1b" not in shown
    assert call("luce", daemon.path, "logs", "path").stdout.decode() == f"{database}\n"
    listed = call("luce", daemon.path, "logs", "list").stdout.decode().splitlines()
    assert [line.split()[-1] for line in listed] == ["QUESTION", "four", "␛[2J", "lines", "one"]
    assert call("luce", daemon.path, "logs", "-c", "-n", "2").returncode == 2
