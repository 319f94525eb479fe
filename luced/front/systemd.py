"""What systemd is told (sd_notify(3)): that we are ready, what is loading, that we live, and what follows."""

from __future__ import annotations

import logging
import socket
import time

import trio

from luced.front.events import Event

PINGS = 3  # in the time after which systemd takes us for dead

log = logging.getLogger("luced.systemd")


class Systemd:
    """`address`: where it listens; empty: it does not ask. `watchdog_s`: after so long without a ping it restarts us;
    0: it does not watch."""

    def __init__(self, address: str, watchdog_s: float) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._models: dict[str, str] = {}  # what the engine does with each
        self._problem = ""
        self._status = ""

    async def run(self) -> None:
        """Pings as long as the loop turns that serves all connections: then the daemon lives.

        The engine is no part of it: it has its supervisor.
        """
        while self._watchdog_s:
            self._say("WATCHDOG=1")
            await trio.sleep(self._watchdog_s / PINGS)

    def ready(self, problem: str = "") -> None:
        """At the start, and after a reload; `problem` says why that failed."""
        self._problem = problem
        self._status = self._describe()
        self._say("READY=1", f"STATUS={self._status}")

    def reloading(self) -> None:
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._say("STOPPING=1", "STATUS=stopping")

    def watch(self, event: Event) -> None:
        """Keeps the status, for `systemctl status`."""
        model = event.facts.get("model", "")
        match event.event:
            case "loading":
                percent = 100 * event.facts["done"] // max(event.facts["total"], 1)
                self._models[model] = f"loading {model}: {percent} %"
            case "loaded":
                self._models[model] = f"loaded {model}"
            case "unloaded" | "refused":
                self._models.pop(model, None)
            case "engine_lost":
                self._models.clear()
        status = self._describe()
        if status != self._status:
            self._status = status
            self._say(f"STATUS={status}")

    def _describe(self) -> str:
        loading_first = sorted(self._models.values(), key=lambda text: text.startswith("loaded"))
        parts = [*filter(None, [self._problem]), *(loading_first or ["no model is loaded"])]
        return "; ".join(parts).replace("\n", " ")  # a new line would begin another message

    def _say(self, *states: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto("\n".join(states).encode(), address)
        except OSError as error:
            log.error("systemd cannot be told %s: %s", states[0], error.strerror)
