"""What a machine may do to a daemon: each time it says what to do, or goes on."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest

from luce.errors import LuceError
from luced.front.daemon import MAX_REFUSED, RESERVED_FILES
from tests.daemon.served import SERVE, START_S, Served, wait_for_end
from tests.tinygguf import tiny_chat_model

MIB = 1 << 20
LONG = 60_000  # tokens of context


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=LONG).parent


@pytest.fixture
def served(models: Path, tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "l.sock", "--model-dir", models, "--model", "tiny", "--threads", "1") as served:
        yield served


def refused(*options: str, **environment: str) -> str:
    """What `luced serve` says, which must be more than what is wrong, and no traceback."""
    command = [*SERVE, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, env={**os.environ, **environment})
    assert done.returncode == 78, done.stderr  # with which systemd does not try again
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2
    return done.stderr


# ---- the socket's folder ----


def test_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    said = refused("--socket", str(tmp_path / "l.sock"))
    assert f"others may write to {tmp_path} (mode 0775)" in said
    assert f"chmod go-w {tmp_path}" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    said = refused("--socket", str(tmp_path / "l.sock"))
    assert f"{tmp_path} belongs to uid 12345" in said
    assert "--socket" in said


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_in_tmp_that_is_not_private(mode: int) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(mode)
        said = refused("--socket", str(folder / "l.sock"))
        assert f"{folder} is not a folder of uid {os.geteuid()} with mode 0700" in said
        assert "remove it, or set LUCE_SOCKET" in said
    finally:
        shutil.rmtree(folder)


def test_a_folder_that_cannot_be_made() -> None:
    said = refused("--socket", "/proc/self/luce/l.sock")
    assert "cannot listen at /proc/self/luce/l.sock: No such file or directory" in said
    assert "choose another with --socket" in said


# ---- files ----


def test_a_home_where_nothing_can_be_written(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/proc/self")
    with Served(tmp_path / "l.sock", "--model-dir", models, "--model", "tiny") as served, served.client() as client:
        assert client.chat("hello", max_tokens=3, ignore_eos=True).read().usage.generated == 3


def test_few_file_descriptors(models: Path, tmp_path: Path) -> None:
    """As with `ulimit -n 64`: who comes too late is told, who is there is served, and a flood does not stay."""
    n_files = 64
    n_all = n_files - RESERVED_FILES
    n_mine = -(-n_all * 3 // 4)
    under = ("prlimit", f"--nofile={n_files}:{n_files}")
    options = ("--model-dir", models, "--model", "tiny", "--threads", "1")
    with Served(tmp_path / "l.sock", *options, under=under) as served, served.client() as client:
        assert f"few file descriptors: {n_all} connections are possible" in served.wait_for("few file descriptors")
        assert client.hello.limits.connections_of_user == n_mine
        with ExitStack() as crowd:
            sockets = [crowd.enter_context(connected(served.path)) for _ in range(3 * n_files)]
            assert [hello(one).get("name") for one in sockets[: n_mine - 1]] == [None] * (n_mine - 1)
            late = refusal(served.path)
            assert (late["name"], late["data"]["limit"], late["data"]["value"]) == (
                "busy",
                "connections_of_user",
                n_mine,
            )
            for silent in sockets[n_mine + MAX_REFUSED :]:  # they are not kept
                assert silent.recv(1) == b""
            assert client.chat("hello", max_tokens=3, ignore_eos=True).read().usage.generated == 3
        until_free(served)


def connected(path: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(START_S)
    one.connect(str(path))
    return one


def hello(one: socket.socket) -> dict[str, Any]:
    """The error that comes; empty: none."""
    one.sendall(msgpack.packb([0, 1, "hello", [{}]]))
    error: dict[str, Any] | None = msgpack.unpackb(one.recv(1 << 16))[2]
    return error or {}


def refusal(path: Path) -> dict[str, Any]:
    """What one more hears, once there are not so many of them that some are closed without a word."""
    end = time.monotonic() + START_S
    while True:
        with connected(path) as one:
            try:
                return hello(one)
            except (ConnectionError, ValueError):
                assert time.monotonic() < end
        time.sleep(0.05)


def until_free(served: Served) -> None:
    end = time.monotonic() + START_S
    while True:
        with connected(served.path) as one:
            if not hello(one):
                return
        assert time.monotonic() < end


# ---- memory ----


def test_too_little_memory_is_told_before_the_load(served: Served) -> None:
    engine = served.engine_pid()
    (size,) = [line for line in Path(f"/proc/{engine}/status").read_text().splitlines() if line.startswith("VmSize")]
    limit = (int(size.split()[1]) << 10) + 24 * MIB
    with served.client() as client:
        resource.prlimit(engine, resource.RLIMIT_AS, (limit, limit))
        with pytest.raises(LuceError) as failure:
            client.load("tiny", n_ctx=LONG)
        assert failure.value.name == "no_memory"
        assert "MiB" in failure.value.message
        assert "are free" in failure.value.message
        assert failure.value.remedy == "use a smaller model or context, or free memory"
        assert client.status().engine.pid == engine  # which did not die of it
        assert client.load("tiny", n_ctx=512).context == 512


# ---- the end ----


def test_the_end_during_a_load(served: Served) -> None:
    engine = served.engine_pid()
    with served.client() as client:
        os.kill(engine, signal.SIGSTOP)  # nothing takes longer
        stream = client.chat("hello")
        client.tokenize("hello")  # it has come
        served.process.send_signal(signal.SIGTERM)
        check_end(served, engine)
        with pytest.raises(LuceError) as failure:
            stream.read()
        assert failure.value.name == "shutting_down"


def test_the_end_during_a_prefill(models: Path, tmp_path: Path) -> None:
    options = ("--model-dir", models, "--model", "tiny")
    with Served(tmp_path / "l.sock", *options, fault=("stop", 3, -1)) as served, served.client() as client:
        stream = client.complete([7] * (LONG - 100))
        events = stream.events()  # which must live: its end is the request's
        while getattr(next(events), "phase", "") != "prefill":
            pass
        engine = served.wait_for_stop()
        served.process.send_signal(signal.SIGTERM)
        served.wait_for("SIGTERM: stopping")
        os.kill(engine, signal.SIGCONT)
        check_end(served, engine)
        with pytest.raises(LuceError) as failure:
            stream.read()
        assert failure.value.name == "shutting_down"


def check_end(served: Served, engine: int) -> None:
    assert served.process.wait(START_S) == 0
    assert wait_for_end(engine)
    assert not served.path.exists()
