"""Settings of the daemon and its engine: one frozen object; nothing below it reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from luce.paths import user_socket

FIRST_INHERITED_FD = 3  # SD_LISTEN_FDS_START of systemd


@dataclass(frozen=True)
class Config:
    """Socket and model folders are the front's; the rest travels to the engine, on its command line or with a Load."""

    socket: Path
    model_dirs: tuple[Path, ...] = ()
    default_model: str = "smollm2-135m-instruct"
    device: str = "cpu"
    isa: str = "auto"  # auto | baseline | avx2 | avx512
    n_threads: int = 0  # 0: one for each core
    n_ctx: int = 0  # 0: what the model was trained for
    kv_type: str = "f16"  # f32 | f16 | bf16 | q8_0
    n_batch: int = 512  # rows of a step
    cache_bytes: int = 0  # for KV pages of one model; 0: chosen by the planner
    listen_fd: int | None = None  # the socket that systemd listens on for us
    notify_socket: str = ""  # where systemd wants to be told that we are ready


def from_environment(**given: object) -> Config:
    """Config of this user: defaults < environment < `given` (None: not given)."""
    values: dict[str, object] = {
        "socket": user_socket(),
        "model_dirs": default_model_dirs(),
        "listen_fd": _take_listen_fd(),
        "notify_socket": os.environ.pop("NOTIFY_SOCKET", ""),
    }
    values.update({k: v for k, v in given.items() if v is not None})
    return Config(**values)  # type: ignore[arg-type]


def default_model_dirs() -> tuple[Path, ...]:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return (data / "luce" / "models", Path("/var/lib/luce/models"))


def _take_listen_fd() -> int | None:
    """Takes what systemd says out of the environment: it is for this process, not for the engine."""
    pid, n_fds = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    return FIRST_INHERITED_FD if pid == str(os.getpid()) and n_fds == "1" else None
