"""luced under a real systemd: the units as they are shipped, a client, journald."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import luce
from tests.systemd.machine import USER, WAIT_S, Machine, why_not

SECRET = "xylophone"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture
def changed(machine: Machine) -> Iterator[Path]:
    """A drop-in of luced.service, to be written; it is taken away again."""
    drop_in = machine.root / "run/systemd/system/luced.service.d/test.conf"
    drop_in.parent.mkdir(exist_ok=True)
    yield drop_in
    drop_in.unlink()
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", "luced.service")


def ask(machine: Machine, model: str = "") -> str:
    with machine.client() as client:
        return "".join(client.chat(SECRET, model=model, max_tokens=8, temperature=0))


def logs(machine: Machine, text: str) -> None:
    """Waits until it is in the journal."""
    machine.wait(lambda: text in machine.journal())


def test_the_first_client_starts_it(machine: Machine) -> None:
    machine.systemctl("stop", "luced.service")
    assert machine.show("ActiveState") == "inactive"
    assert ask(machine)
    assert machine.show("ActiveState") == "active"
    assert machine.show("StatusText") == "loaded tiny"
    assert machine.show("User") == "luce"


def test_members_of_the_group_may_connect_and_nobody_else(machine: Machine) -> None:
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('/run/luce/luced.sock')"

    def connects(group: str) -> bool:
        as_nobody = ("setpriv", "--reuid=nobody", f"--regid={group}", "--clear-groups")
        done = machine.run(*as_nobody, sys.executable, "-c", connect)
        assert done.returncode == 0 or "PermissionError" in done.stderr, done.stderr
        return done.returncode == 0

    assert connects("luce")
    assert not connects("nogroup")


def test_the_socket_for_inference_is_opened_to_the_group(machine: Machine, changed: Path) -> None:
    changed.write_text("[Service]\nEnvironment=LUCE_INFERENCE_SOCKET=/run/luce/inference/luced.sock\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", "luced.service")
    with machine.client() as client:
        inference = client.status().inference_socket
    assert inference is not None
    assert (inference.mode, inference.group, inference.problem) == ("0660", "luce", "")


def test_a_reload_reads_the_settings(machine: Machine) -> None:
    ask(machine)
    pid = machine.show("MainPID")
    settings = machine.root / "etc/luce/luced.toml"
    before = settings.read_text()
    try:
        settings.write_text(before + 'n_batch = 64\n[aliases]\nshort = "tiny"\n')
        machine.systemctl("reload", "luced.service")
        logs(machine, "settings that change with a restart keys=n_batch")
        assert ask(machine, model="short")
        settings.write_text("n_contexts = 5\n")
        machine.systemctl("reload", "luced.service")
        logs(machine, "settings not reloaded")
        machine.wait(lambda: "n_contexts" in machine.show("StatusText"))
        assert ask(machine, model="short")
    finally:
        settings.write_text(before)
    machine.systemctl("reload", "luced.service")
    machine.wait(lambda: "n_contexts" not in machine.show("StatusText"))
    assert machine.show("ActiveState") == "active"
    assert machine.show("MainPID") == pid


def test_who_connects_while_it_restarts_is_answered(machine: Machine, changed: Path) -> None:
    expected = ask(machine)
    pid = machine.show("MainPID")
    changed.write_text("[Service]\nExecStartPre=/bin/sh -c 'until test -e /run/go; do sleep 0.05; done'\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", "--no-block", "luced.service")
    machine.wait(lambda: machine.show("ActiveState") == "activating")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(machine)))
    asking.start()
    assert machine.show("MainPID") == "0"
    (machine.root / "run/go").touch()
    asking.join()
    assert answers == [expected]
    assert machine.show("MainPID") not in ("0", pid)


def test_a_dead_engine_is_no_end_of_the_service(machine: Machine) -> None:
    expected = ask(machine)
    pid = machine.show("MainPID")
    with machine.client() as client:
        machine.run("kill", "-KILL", str(client.status().engine.pid))
    logs(machine, "the engine is lost")
    assert ask(machine) == expected
    assert machine.show("MainPID") == pid
    assert machine.show("OOMPolicy") == "continue"


def test_the_watchdog_restarts_a_daemon_that_hangs(machine: Machine, changed: Path) -> None:
    changed.write_text("[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", "luced.service")
    expected = ask(machine)
    pid = machine.show("MainPID")
    machine.run("kill", "-STOP", pid)
    machine.wait(lambda: machine.show("NRestarts") == "1" and machine.show("ActiveState") == "active")
    assert machine.show("MainPID") != pid
    assert ask(machine) == expected


def test_the_watchdog_leaves_a_daemon_alone_that_lives(machine: Machine, changed: Path) -> None:
    changed.write_text("[Service]\nWatchdogSec=1\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", "luced.service")
    pinged_at = machine.show("WatchdogTimestampMonotonic")
    machine.wait(lambda: int(machine.show("WatchdogTimestampMonotonic")) > int(pinged_at) + 2_000_000)
    assert machine.show("NRestarts") == "0"


def test_the_journal_has_requests_and_no_prompt(machine: Machine) -> None:
    answer = ask(machine)
    logs(machine, "chat ended request=")
    everything = machine.run("journalctl", "--no-pager", "--output", "export").stdout
    assert SECRET not in everything
    assert answer not in everything
    line = machine.run("journalctl", "--no-pager", "--output=verbose", "--grep=chat ended").stdout
    assert "PRIORITY=6" in line


def test_it_dumps_no_core(machine: Machine) -> None:
    ask(machine)
    limits = (machine.root / "proc" / machine.show("MainPID") / "limits").read_text()
    core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["0", "0"]


def has_stopped_cleanly(machine: Machine) -> bool:
    assert machine.show("Result") == "success"
    assert machine.show("ExecMainStatus") == "0"
    assert machine.show("ActiveState", "luced.socket") == "active"
    processes = machine.root / "sys/fs/cgroup/system.slice/luced.service/cgroup.procs"
    return not processes.exists() or not processes.read_text()


def test_it_stops_cleanly(machine: Machine) -> None:
    ask(machine)
    machine.systemctl("stop", "luced.service")
    assert has_stopped_cleanly(machine)


def test_it_stops_cleanly_though_the_engine_hangs(machine: Machine) -> None:
    ask(machine)
    with machine.client() as client:
        machine.run("kill", "-STOP", str(client.status().engine.pid))
        stream = client.chat(SECRET)
        machine.systemctl("stop", "luced.service")
        with pytest.raises(luce.LuceError) as caught:
            stream.read()
        assert caught.value.name == "shutting_down"
    assert has_stopped_cleanly(machine)


def test_a_users_own_units(machine: Machine) -> None:
    machine.systemctl("start", "user.service")
    machine.user_systemctl("start", "luced.socket")
    folder = machine.root / "run/user" / USER / "luce"
    assert f"{folder.stat().st_mode:o} {(folder / 'luced.sock').stat().st_mode:o}" == "40700 140600"
    with luce.Client(folder / "luced.sock", timeout=WAIT_S) as client:
        assert client.chat(SECRET, max_tokens=4, temperature=0).read().choices
        pid = client.status().pid
    shown = machine.user_systemctl("show", "--property=MainPID,StatusText,ActiveState", "luced.service")
    assert set(shown.split("\n")) >= {f"MainPID={pid}", "StatusText=loaded tiny", "ActiveState=active"}
    machine.user_systemctl("reload", "luced.service")
    machine.user_systemctl("stop", "luced.service")
    assert "Result=success" in machine.user_systemctl("show", "--property=Result", "luced.service")
