"""Who may do what: roles, the inference-only socket, and another uid at the real socket."""

from __future__ import annotations

import grp
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from luce.messages import METHODS, ROLES
from luced.front import listener
from luced.front.daemon import Daemon
from tests.front.harness import running

OTHER_UID = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

# Runs as another uid: `script` gets a raw connection and prints what it found as JSON.
AS_OTHER = """
import json, os, sys
import luce
from luce.errors import LuceError
path, uid, groups = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
os.setgroups(groups)
os.setgid(uid)
os.setuid(uid)
def refused(call):
    try:
        call()
    except LuceError as error:
        return [error.name, error.message]
try:
    client = luce.Client(path, timeout=60)
except LuceError as error:
    print(json.dumps({"refused": error.name}))
    raise SystemExit
print(json.dumps({
    "role": client.hello.role,
    "tenant": client.hello.tenant,
    "requests": [running.client for running in client.status().requests],
    "path": refused(lambda: client.tokenize("a", model="/etc/passwd")),
    "text": client.complete("say:b", max_tokens=1).read().text,
}))
"""


async def as_other(path: Path, groups: tuple[int, ...] = ()) -> dict[str, Any]:
    command = [sys.executable, "-c", AS_OTHER, str(path), str(OTHER_UID), json.dumps(groups)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = await trio.run_process(command, capture_stdout=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter; pytest's own they cannot."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_call_what_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setattr(Daemon, "_role", lambda *_: role)
    async with running(tmp_path) as house:
        client = await house.connect(greet=False)
        hello = await client.call("hello")
        mine = {m.name for m in METHODS if ROLES.index(m.role) <= ROLES.index(role)}
        assert (hello["role"], set(hello["methods"])) == (role, mine)
        for method in METHODS:
            if method.name not in mine:
                error = await client.refused(method.name)
                assert error["name"] == "not_permitted"
                assert error["data"] == {"role": role, "needed": method.role}
                who = "root, uid" if method.role == "operator" else str(house.daemon.listener.path)
                assert who in error["message"]


def test_what_inference_may() -> None:
    may = {m.name for m in METHODS if m.role == "inference"}
    wanted = {"hello", "chat", "complete", "infill", "embed", "tokenize", "detokenize", "template", "models", "cancel"}
    assert may == wanted & {m.name for m in METHODS}


async def test_the_second_socket_is_for_inference_alone(tmp_path: Path) -> None:
    async with running(tmp_path, inference_socket=tmp_path / "inference" / "luced.sock") as house:
        second = house.daemon.inference
        assert second is not None
        assert stat.S_IMODE(second.path.stat().st_mode) in (0o600, 0o660)
        client, operator = await house.connect(to=second), await house.connect()
        assert (await client.call("complete", prompt="say:a", max_tokens=1))["choices"][0]["text"] == "a"
        for method in ("status", "subscribe", "api"):
            assert (await client.refused(method))["name"] == "not_permitted"
        path = str(tmp_path / "tiny.gguf")
        assert (await client.refused("complete", prompt="x", model=path))["name"] == "not_permitted"
        models = (await client.call("models"))["models"]
        assert {row["name"] for row in models} >= {"tiny", "slow"}
        assert str(tmp_path) not in str(models)
        status = await operator.call("status")
        assert status["inference_socket"]["path"] == str(second.path)
    assert not second.path.exists()


def test_a_second_socket_has_the_same_guards(tmp_path: Path) -> None:
    path = tmp_path / "run" / "inference.sock"
    first = listener.listen(path)
    with pytest.raises(listener.CannotListenError, match="another luced listens"):
        listener.listen(path)
    first.socket.close()  # as if the daemon had died: the socket is stale, the lock is not held
    os.close(first.lock_fd)
    listener.listen(path).close()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(listener.CannotListenError, match="others may write to"):
        listener.listen(tmp_path / "open" / "inference.sock")


def test_an_operator_group_that_is_not_there_is_refused() -> None:
    with pytest.raises(listener.CannotListenError, match="no group 'nobody-has-this'"):
        listener.operator_gid("nobody-has-this")


@needs_root
async def test_another_uid_is_a_user(open_folder: Path) -> None:
    async with running(open_folder) as house:
        assert await as_other(house.daemon.listener.path) == {"refused": "not_permitted"}  # the folder is ours alone
        house.daemon.listener.path.parent.chmod(0o755)
        house.daemon.listener.path.chmod(0o666)
        mine = await house.connect()
        await mine.note(await mine.send("complete", prompt="say:a;wait"), "text")
        found = await as_other(house.daemon.listener.path)
        assert found["role"] == "user"
        assert found["tenant"] == str(OTHER_UID)
        assert found["requests"] == []
        assert found["path"][0] == "not_permitted"
        assert "root, uid 0" in found["path"][1]
        assert found["text"] == "b"


@needs_root
async def test_a_member_of_the_operator_group_is_an_operator(open_folder: Path) -> None:
    group = grp.getgrgid(1)
    async with running(open_folder, operator_group=group.gr_name) as house:
        house.daemon.listener.path.parent.chmod(0o755)
        house.daemon.listener.path.chmod(0o666)
        mine = await house.connect()
        await mine.note(await mine.send("complete", prompt="say:a;wait"), "text")
        assert (await as_other(house.daemon.listener.path))["role"] == "user"
        found = await as_other(house.daemon.listener.path, (group.gr_gid,))
        assert found["role"] == "operator"
        assert found["requests"] == ["test 1.0"]
        assert found["path"][0] != "not_permitted"
