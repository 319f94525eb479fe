"""Where clients look for the daemon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from luce import paths
from luce.errors import LuceError


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LUCE_SOCKET", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", tmp_path / "run" / "luced.sock")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.user_socket() == paths.find_socket() == tmp_path / "luce" / "luced.sock"
    monkeypatch.setenv("LUCE_SOCKET", "/somewhere/else.sock")
    assert paths.user_socket() == paths.find_socket() == Path("/somewhere/else.sock")


def test_no_runtime_folder() -> None:
    assert paths.user_socket() == Path("/tmp/luce-1234/luced.sock")


def test_the_machines_socket_comes_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))
    own = tmp_path / "user" / "luce" / "luced.sock"
    assert paths.find_socket() == own
    for path in (paths.SYSTEM_SOCKET, own):
        path.parent.mkdir(parents=True)
        path.touch()
        assert paths.find_socket() == path


def test_a_folder_that_others_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "luce-0"
    folder.mkdir(mode=0o700)
    uid = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    paths.check_private(folder)
    folder.chmod(0o755)
    link = tmp_path / "luce-1"
    link.symlink_to(folder)
    for bad in (folder, link):
        with pytest.raises(LuceError) as raised:
            paths.check_private(bad)
        assert raised.value.name == "not_permitted"
        assert str(bad) in raised.value.message
    folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(LuceError):
        paths.check_private(folder)
