"""A model that the engine holds or is about to hold."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import trio

from luce.errors import LuceError
from luced import link
from luced.front.death import Deaths
from luced.gguf.catalogue import Entry


@dataclass(eq=False)
class Resident:
    """Times ending in `_at` are trio's clock. `changed` is set, and replaced, at every change."""

    entry: Entry
    n_ctx: int  # as asked for; 0: what it was trained for
    kv_type: str
    keep_alive_s: float  # how long it stays after its last request
    loaded: link.Loaded | None = None
    error: LuceError | None = None  # why it is not there any more
    done_bytes: int = 0
    total_bytes: int = 0
    since: float = 0.0  # Unix time at which it was loaded
    n_users: int = 0  # requests that hold it
    used_at: float = 0.0  # when the last one let go
    leaves_at: float = math.inf
    had_ctx: int = 0  # with how much context it was loaded the last time
    deaths: Deaths = field(default_factory=Deaths)  # of the engine while it loaded it
    changed: trio.Event = field(default_factory=trio.Event)

    @property
    def name(self) -> str:
        return self.entry.name

    def suits(self, entry: Entry, n_ctx: int | None, kv_type: str | None) -> bool:
        """Whether it is of this file as it is now, and has these settings, as far as they are given."""
        contexts = (None, self.n_ctx, self.loaded.n_ctx if self.loaded else None)
        return entry.version == self.entry.version and n_ctx in contexts and kv_type in (None, self.kv_type)

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def describe(self) -> dict[str, Any]:
        """For `status`; it is loaded."""
        assert self.loaded is not None
        stays = self.leaves_at == math.inf
        return {
            "name": self.name,
            "memory": self.loaded.memory,
            "context": self.loaded.n_ctx,
            "since": self.since,
            "requests": self.n_users,
            "until": None if stays else time.time() + self.leaves_at - trio.current_time(),
        }


def n_bytes(resident: Resident) -> int:
    """Memory that is free when it is unloaded."""
    return sum(resident.loaded.memory.values()) if resident.loaded else 0
