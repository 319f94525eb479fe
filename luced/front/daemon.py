"""The daemon: what all connections share, its start and its end."""

from __future__ import annotations

import itertools
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import trio

from luced.config import Config
from luced.errors import EngineError, RequestError
from luced.front.answers import Answer
from luced.front.listener import Listener, peer_of
from luced.front.residency import Residency
from luced.front.session import Session, describe_bug
from luced.front.supervisor import Supervisor
from luced.front.texts import Texts
from luced.gguf.catalogue import Catalogue

MAX_SESSIONS = 512
MAX_SESSIONS_OF_UID = 128
FAREWELL_S = 2.0  # for answers that end with the daemon to reach their clients

log = logging.getLogger("luced.daemon")


class Daemon:
    def __init__(self, config: Config, listener: Listener, engine_command: Sequence[str] | None = None) -> None:
        self.config = config
        self.listener = listener
        self.instance = secrets.token_hex(8)
        self.started_at = time.monotonic()
        self.catalogue = Catalogue(config.search_path, config.aliases)
        self.texts = Texts()
        self.supervisor = Supervisor(engine_command or default_engine_command(config))
        self.residency = Residency(self.supervisor, config)
        self.answers: set[Answer] = set()
        self.sessions: set[Session] = set()
        self._numbers = itertools.count(1)
        self._stopping = trio.Event()

    async def run(self) -> None:
        """Serves until `stop`: then running requests get `shutting_down`, and the engine ends."""
        accepting = trio.SocketListener(trio.socket.from_stdlib_socket(self.listener.socket))
        async with trio.open_nursery() as engine:
            engine.start_soon(self.supervisor.run)
            async with trio.open_nursery() as sessions, trio.open_nursery() as nursery:
                nursery.start_soon(self._accept, accepting, sessions)
                log.info("listening at %s", self.listener.path)
                notify_systemd(self.config.notify_socket, "READY=1")
                await self._stopping.wait()
                notify_systemd(self.config.notify_socket, "STOPPING=1")
                nursery.cancel_scope.cancel()
                for session in self.sessions:
                    session.end(EngineError("shutting_down", "the daemon is shutting down"))
                sessions.cancel_scope.deadline = trio.current_time() + FAREWELL_S
            self.supervisor.stop()
        log.info("stopped")

    def stop(self) -> None:
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def describe_socket(self) -> dict[str, Any]:
        """For `status`."""
        listener = self.listener
        return {
            "path": str(listener.path),
            "mode": f"{listener.mode:04o}",
            "group": listener.group,
            "problem": listener.problem,
        }

    async def _accept(self, accepting: trio.SocketListener, sessions: trio.Nursery) -> None:
        await trio.serve_listeners(self._serve, [accepting], handler_nursery=sessions)

    async def _serve(self, stream: trio.SocketStream) -> None:
        peer = peer_of(stream)
        session = Session(self, stream, peer, next(self._numbers))
        n_of_uid = sum(other.peer.uid == peer.uid for other in self.sessions)
        if n_of_uid >= MAX_SESSIONS_OF_UID or len(self.sessions) >= MAX_SESSIONS:
            session.refusal = RequestError(
                "busy", f"there are {len(self.sessions)} connections, {n_of_uid} of this user"
            )
        self.sessions.add(session)
        log.info("connection %d: uid %d, pid %d", session.number, peer.uid, peer.pid)
        try:
            await session.run()
        except Exception as bug:
            log.error("connection %d: ended by a bug\n%s", session.number, describe_bug(bug))
        finally:
            self.sessions.remove(session)
            log.info("connection %d: closed", session.number)


async def serve(config: Config, listener: Listener, preload: Sequence[str]) -> None:
    """Runs a daemon until SIGTERM or SIGINT; the second one ends it at once. RequestError: no such model to preload."""
    daemon = Daemon(config, listener)
    for name in preload:
        entry = daemon.catalogue.find(name)
        daemon.residency.want(entry.name, entry.path)
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, daemon, nursery.cancel_scope)
        await daemon.run()
        nursery.cancel_scope.cancel()


async def _stop_on_signal(
    daemon: Daemon, everything: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            log.info("%s: stopping", signal.Signals(number).name)
            if daemon.is_stopping:
                everything.cancel()
            daemon.stop()


def default_engine_command(config: Config) -> list[str]:
    # -P: what lies in the folder where the daemon was started is no module of ours.
    return [
        *(sys.executable, "-P", "-m", "luced", "engine"),
        *("--device", config.device, "--isa", config.isa, "--threads", str(config.n_threads)),
        *("--batch", str(config.n_batch), "--cache-bytes", str(config.cache_bytes)),
    ]


def notify_systemd(address: str, state: str) -> None:
    """sd_notify(3); nothing where systemd does not ask for it."""
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:
        log.error("systemd cannot be told %s: %s", state, error.strerror)
