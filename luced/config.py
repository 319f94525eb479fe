"""Settings of the daemon and its engine: one frozen object; nothing below it reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Config:
    """socket and model folders are the front's; the rest travels to the engine on its command line."""

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


def from_environment(**given: object) -> Config:
    """Config of this user: defaults < environment < `given` (None: not given)."""
    socket = os.environ.get("LUCE_SOCKET")
    values: dict[str, object] = {
        "socket": Path(socket) if socket else default_socket(),
        "model_dirs": default_model_dirs(),
    }
    values.update({k: v for k, v in given.items() if v is not None})
    return Config(**values)  # type: ignore[arg-type]


def default_socket() -> Path:
    """Where a daemon of this user listens (docs/architecture.md §11)."""
    if os.geteuid() == 0 and Path("/run/systemd/system").is_dir():
        return Path("/run/luce/luced.sock")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime else Path(f"/tmp/luce-{os.getuid()}")
    return base / "luce" / "luced.sock" if runtime else base / "luced.sock"


def default_model_dirs() -> tuple[Path, ...]:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return (data / "luce" / "models", Path("/var/lib/luce/models"))
