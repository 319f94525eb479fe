"""Where the daemon's socket is: the one rule, for those who listen and for those who connect.

$LUCE_SOCKET, if set. Else the user's own: $XDG_RUNTIME_DIR/luce/luced.sock, or /tmp/luce-UID/luced.sock where that is
not set; root's own is the machine's under systemd. A client that finds no such socket takes the machine's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import LuceError

SYSTEM_SOCKET = Path("/run/luce/luced.sock")


def user_socket() -> Path:
    """Where a daemon that this user starts listens."""
    if given := os.environ.get("LUCE_SOCKET"):
        return Path(given)
    if os.geteuid() == 0 and Path("/run/systemd/system").is_dir():
        return SYSTEM_SOCKET
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "luce" / "luced.sock"
    return Path(f"/tmp/luce-{os.geteuid()}/luced.sock")


def find_socket() -> Path:
    """Where a client connects. LuceError (not_permitted): the folder in /tmp is not this user's alone."""
    own = user_socket()
    if os.environ.get("LUCE_SOCKET"):
        return own
    if own.parent.parent == Path("/tmp") and own.parent.is_dir():
        check_private(own.parent)
    return SYSTEM_SOCKET if SYSTEM_SOCKET.exists() and not own.exists() else own


def check_private(folder: Path) -> None:
    """In a folder that all may write to, anybody could have made this one: LuceError if it is not ours, mode 0700."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise LuceError(
            "not_permitted",
            f"{folder} is not a folder of uid {os.geteuid()} with mode 0700",
            {"path": str(folder), "uid": found.st_uid, "mode": f"{stat.S_IMODE(found.st_mode):04o}"},
            "remove it, or set LUCE_SOCKET",
        )
