"""`luced serve` from outside: its socket, its start and its end. What the engine computes is not looked at here."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import luce
from luce.errors import LuceError
from tests.daemon.served import SERVE, START_S, Served, wait_for_end


def test_the_socket_is_for_this_user_alone(tmp_path: Path) -> None:
    with Served(tmp_path / "run" / "l.sock") as served:
        assert stat.S_IMODE(served.path.stat().st_mode) in (0o600, 0o660)
        assert stat.S_IMODE(served.path.parent.stat().st_mode) == 0o700
        with served.client() as client:
            told = client.status().socket
            assert told.path == str(served.path)
            assert bool(told.problem) == (told.group == "")
    assert not served.path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(tmp_path: Path, number: signal.Signals) -> None:
    with Served(tmp_path / "l.sock") as served:
        assert served.stop(number) == 0


def test_a_second_daemon_says_that_there_is_one(tmp_path: Path) -> None:
    with Served(tmp_path / "l.sock") as served:
        second = subprocess.run([*SERVE, "--socket", str(served.path)], capture_output=True, text=True, timeout=START_S)
        assert second.returncode == 78
        assert f"another luced listens at {served.path}" in second.stderr
        assert "Traceback" not in second.stderr
        with served.client() as client:
            assert client.status().pid == served.process.pid


def test_a_second_socket_is_for_inference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "inference" / "l.sock"
    monkeypatch.setenv("LUCE_INFERENCE_SOCKET", str(path))
    with Served(tmp_path / "l.sock") as served:
        with luce.Client(path, timeout=60) as client, pytest.raises(LuceError, match="is for who connects to"):
            client.status()
        other = subprocess.run(
            [*SERVE, "--socket", str(tmp_path / "b.sock")], capture_output=True, text=True, timeout=60
        )
        assert other.returncode == 78
        assert f"another luced listens at {path}" in other.stderr
        assert not (tmp_path / "b.sock").exists()
        with served.client() as client:
            told = client.status().inference_socket
            assert told is not None
            assert told.path == str(path)
        served.process.kill()
        served.process.wait()
    assert path.is_socket()  # stale now
    with Served(tmp_path / "l.sock"), luce.Client(path, timeout=60) as client:
        assert client.hello.role == "inference"
    assert not path.exists()


def test_a_stale_socket_is_replaced_and_the_engine_does_not_outlive_the_front(tmp_path: Path) -> None:
    with Served(tmp_path / "l.sock") as served:
        engine = served.engine_pid()
        served.process.kill()
        served.process.wait()
        assert wait_for_end(engine)
    assert served.path.is_socket()
    with Served(tmp_path / "l.sock") as served, served.client() as client:
        assert client.status().pid == served.process.pid


def test_another_program_at_the_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "l.sock"
    path.write_text("precious")
    refused = subprocess.run([*SERVE, "--socket", str(path)], capture_output=True, text=True, timeout=START_S)
    assert refused.returncode == 78
    assert path.read_text() == "precious"


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    refused = subprocess.run([*SERVE, "--socket", str(folder / "l")], capture_output=True, text=True, timeout=START_S)
    assert refused.returncode == 78
    assert str(folder) in refused.stderr


def test_systemd_hands_over_the_socket_and_is_told_when_it_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "l.sock"
    with socket.socket(socket.AF_UNIX) as ours, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        ours.bind(str(path))
        ours.listen()
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(START_S)
        hand_over = f"import os, sys; os.dup2({ours.fileno()}, 3); os.environ['LISTEN_PID'] = str(os.getpid())"
        process = subprocess.Popen(
            [sys.executable, "-c", f"{hand_over}; os.execv(sys.argv[1], sys.argv[1:])", *SERVE],
            pass_fds=[ours.fileno()],
            env={**os.environ, "LISTEN_FDS": "1", "NOTIFY_SOCKET": str(tmp_path / "notify")},
            stderr=subprocess.DEVNULL,
        )
        try:
            assert notified.recv(100) == b"READY=1\nSTATUS=no model is loaded"
            with luce.Client(path, timeout=START_S) as client:
                assert client.status().pid == process.pid
            process.terminate()
            assert notified.recv(100) == b"STOPPING=1\nSTATUS=stopping"
            assert process.wait(START_S) == 0
        finally:
            process.kill()
            process.wait()
        assert path.is_socket()  # it is systemd's


def test_an_unknown_model_to_load_is_an_error_at_the_start(tmp_path: Path) -> None:
    command = [*SERVE, "--socket", str(tmp_path / "l.sock"), "--load", "nosuch"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert refused.returncode == 65
    assert "nosuch" in refused.stderr
    assert not (tmp_path / "l.sock").exists()


def test_no_prompt_is_in_the_log(tmp_path: Path) -> None:
    with Served(tmp_path / "l.sock") as served:
        with served.client() as client:
            with pytest.raises(LuceError):
                client.complete("my secret", model="nosuch").read()
            with pytest.raises(LuceError):
                client.chat([{"role": "user", "content": "my secret", "x": "my secret"}]).read()
        served.stop()
    assert "secret" not in "".join(served.lines)


def test_python_m_luced_is_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "luced", "version"], capture_output=True, text=True, timeout=START_S)
    assert shown.stdout.startswith("luced ")
