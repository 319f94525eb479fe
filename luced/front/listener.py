"""The socket: where it lies, who may connect to it, and who has (docs/architecture.md §11)."""

from __future__ import annotations

import array
import fcntl
import grp
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from luce.errors import LuceError
from luce.paths import check_private

if TYPE_CHECKING:
    import trio

GROUP = "luce"
BACKLOG = 1024  # as many as may be connected
CREDENTIALS = "3i"  # struct ucred
SO_PEERGROUPS = getattr(socket, "SO_PEERGROUPS", 59)  # of Linux; not in Python yet
GROUPS_BYTES = 1024  # the most that Python asks for: 256 groups
MAX_PATH_BYTES = 107  # sun_path, less its zero


class CannotListenError(Exception):
    """The socket cannot be had: the message says why, `remedy` what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True)
class Peer:
    """Who connected, as the kernel saw it then. The pid may be another process's by now."""

    pid: int
    uid: int
    groups: frozenset[int]


def peer_of(stream: trio.SocketStream) -> Peer:
    size = struct.calcsize(CREDENTIALS)
    pid, uid, gid = struct.unpack(CREDENTIALS, stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    try:
        others = array.array("I", stream.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES))
    except OSError:  # more groups, or an old kernel: who it is counts, not whom it belongs to
        others = array.array("I")
    return Peer(pid, uid, frozenset([gid, *others]))


def operator_gid(group: str) -> int | None:
    """CannotListenError: there is no such group."""
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError:
        raise CannotListenError(f"operator_group: there is no group {group!r}", "make it, or name another") from None


@dataclass
class Listener:
    """A listening Unix socket. `problem` says what is not as it should be, for `status`."""

    socket: socket.socket
    path: Path
    mode: int
    group: str = ""
    problem: str = ""
    lock_fd: int = -1  # -1: the socket is another's, who keeps it

    def describe(self) -> dict[str, str]:
        """For `status`."""
        return {"path": str(self.path), "mode": f"{self.mode:04o}", "group": self.group, "problem": self.problem}

    def close(self) -> None:
        self.socket.close()
        if self.lock_fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self.lock_fd)


def inherit(fd: int) -> Listener:
    """The socket that systemd listens on for us. CannotListenError: it is no listening Unix socket."""
    inherited = socket.socket(fileno=fd)
    if inherited.family != socket.AF_UNIX or not inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise CannotListenError(f"file descriptor {fd} is no listening Unix socket", "correct luced.socket")
    path = Path(inherited.getsockname())
    return Listener(inherited, path, stat.S_IMODE(path.stat().st_mode), path.group())


def listen(path: Path) -> Listener:
    """Binds `path` for the group `luce`, or for the caller alone. CannotListenError: it is taken, or is not safe."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check(path)
        lock_fd = _lock(path)
        try:
            listener = _bind(path, lock_fd)
        except BaseException:
            os.close(lock_fd)
            raise
    except OSError as error:
        raise CannotListenError(f"cannot listen at {path}: {error.strerror}", "choose another with --socket") from None
    _open_to_group(listener)
    return listener


def check(path: Path) -> None:
    """CannotListenError: no socket can be here, or others could replace it in its folder."""
    folder = path.parent
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise CannotListenError(f"{path} is too long for a socket", f"use a path of at most {MAX_PATH_BYTES} bytes")
    if folder.parent == Path("/tmp"):
        try:
            check_private(folder)
        except LuceError as error:
            raise CannotListenError(str(error), error.remedy) from None
    info = folder.stat()
    if info.st_uid not in (0, os.geteuid()):
        what = f"{folder} belongs to uid {info.st_uid}, who could replace the socket"
        raise CannotListenError(what, "remove it, or choose another with --socket")
    if info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX:
        what = f"others may write to {folder} (mode {stat.S_IMODE(info.st_mode):04o}): they could replace the socket"
        raise CannotListenError(what, f"chmod go-w {folder}, or choose another with --socket")


def _lock(path: Path) -> int:
    """Held as long as the daemon lives, so that of two that start at once only one can take the socket for stale."""
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise _taken(path) from None
    return fd


def _bind(path: Path, lock_fd: int) -> Listener:
    if path.is_socket():
        if _answers(path):
            raise _taken(path)
        path.unlink()
    ours = socket.socket(socket.AF_UNIX)
    old_umask = os.umask(0o177)
    try:
        ours.bind(str(path))
    except BaseException:
        ours.close()
        raise
    finally:
        os.umask(old_umask)
    return Listener(ours, path, 0o600, lock_fd=lock_fd)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # its queue is full
            return True
        return True


def _open_to_group(listener: Listener) -> None:
    try:
        os.chown(listener.path, -1, grp.getgrnam(GROUP).gr_gid)
        listener.path.chmod(0o660)
    except KeyError:
        listener.problem = f"there is no group {GROUP!r}: only this user may connect"
    except PermissionError:
        listener.problem = f"this user is not in the group {GROUP!r}: only this user may connect"
    else:
        listener.mode, listener.group = 0o660, GROUP
    listener.socket.listen(BACKLOG)


def _taken(path: Path) -> CannotListenError:
    return CannotListenError(
        f"another luced listens at {path}", "use that one, end it, or choose another with --socket"
    )
