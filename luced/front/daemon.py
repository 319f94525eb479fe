"""The daemon: what all connections share, its start and its end."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
import resource
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import trio

from luced.config import Config
from luced.errors import EngineError, ModelError, RequestError
from luced.front.answers import Answer
from luced.front.child import Child, command_of
from luced.front.embedding import Embedding
from luced.front.events import Events
from luced.front.journal import describe_bug, entry
from luced.front.listener import Listener, Peer, operator_gid, peer_of
from luced.front.queue import Queue
from luced.front.reload import changes
from luced.front.residency import Residency
from luced.front.session import Session
from luced.front.supervisor import Supervisor
from luced.front.systemd import Systemd
from luced.front.texts import Texts
from luced.gguf.catalogue import Catalogue

MAX_SESSIONS = 1024
MAX_SESSIONS_OF_UID = 768
RESERVED_FILES = 48  # for the engine, text workers, model files, and connections that are refused
MAX_REFUSED = 16  # connections too many that are told so; more are closed without a word
REFUSED_S = 1.0  # that they have to say hello
FAREWELL_S = 2.0  # for answers that end with the daemon to reach their clients

log = logging.getLogger("luced.daemon")


class Daemon:
    """`inference`: a second socket, where everybody may only infer. `engine`: one that runs already.
    CannotListenError: there is no operator_group."""

    def __init__(
        self,
        config: Config,
        listener: Listener,
        engine_command: Sequence[str] | None = None,
        inference: Listener | None = None,
        engine: Child | None = None,
    ) -> None:
        self.config = config
        self.listener = listener
        self.inference = inference
        self.instance = secrets.token_hex(8)
        self.started_at = time.monotonic()
        self.catalogue = Catalogue(config.search_path, config.aliases)
        self.texts = Texts()
        self.systemd = Systemd(config.notify_socket, config.watchdog_s)
        self.events = Events(self.systemd.watch)
        self.queue = Queue(config.max_queue, config.max_queue_of_user)
        self.supervisor = Supervisor(
            engine_command or command_of(config), self.events, config.pause_s, config.state_dir / "reports", engine
        )
        self.residency = Residency(self.supervisor, config)
        self.answers: set[Answer | Embedding] = set()
        self.sessions: set[Session] = set()
        self.held_bytes: Counter[int] = Counter()  # of each user, sent and not answered yet
        max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.max_sessions = min(MAX_SESSIONS, max(1, max_files - RESERVED_FILES))
        self.max_sessions_of_uid = min(MAX_SESSIONS_OF_UID, -(-self.max_sessions * 3 // 4))
        self._n_refused = 0
        self._operator_gid = operator_gid(config.operator_group)
        self._numbers = itertools.count(1)
        self._stopping = trio.Event()

    async def run(self) -> None:
        """Serves until `stop`: then running requests get `shutting_down`, and the engine ends."""
        async with trio.open_nursery() as engine:
            engine.start_soon(self.supervisor.run)
            async with trio.open_nursery() as sessions, trio.open_nursery() as nursery:
                await nursery.start(self.texts.pool.run)
                nursery.start_soon(self.residency.run)
                nursery.start_soon(self.systemd.run)
                for listener in filter(None, (self.listener, self.inference)):
                    nursery.start_soon(self._accept, listener, sessions)
                    log.info(entry(f"listening at {listener.path}", mode=f"{listener.mode:04o}", group=listener.group))
                    if listener.problem:
                        log.warning(entry("socket", path=listener.path, problem=listener.problem))
                if self.max_sessions < MAX_SESSIONS:
                    what = f"few file descriptors: {self.max_sessions} connections are possible, not {MAX_SESSIONS}"
                    log.warning("%s; raise LimitNOFILE or ulimit -n to %d", what, MAX_SESSIONS + RESERVED_FILES)
                self.systemd.ready()
                await self._stopping.wait()
                self.systemd.stopping()
                nursery.cancel_scope.cancel()
                for session in self.sessions:
                    session.end(EngineError("shutting_down", "the daemon is shutting down"))
                sessions.cancel_scope.deadline = trio.current_time() + FAREWELL_S
            self.supervisor.stop()
        log.info("stopped")

    def stop(self) -> None:
        self._stopping.set()

    def reload(self, read_config: Callable[[], Config]) -> None:
        """Reads the settings again. What is wrong with them is logged, and changes nothing."""
        self.systemd.reloading()
        problem = ""
        try:
            config, changed, fixed = changes(self.config, read_config())
        except ModelError as error:
            log.error(entry("settings not reloaded", error=error.name, message=error))
            problem = f"settings not reloaded: {error}"
        else:
            self.config = self.residency.config = config
            self.catalogue = Catalogue(config.search_path, config.aliases)
            self.queue.max_calls, self.queue.max_of_user = config.max_queue, config.max_queue_of_user
            log.info(entry("settings reloaded", changed=",".join(changed)))
            if fixed:
                log.warning(entry("settings that change with a restart", keys=",".join(fixed)))
        self.systemd.ready(problem)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def limits(self) -> dict[str, int]:
        """For `hello`."""
        return {
            "connections": self.max_sessions,
            "connections_of_user": self.max_sessions_of_uid,
            "queue": self.queue.max_calls,
            "queue_of_user": self.queue.max_of_user,
        }

    def who_may(self, role: str) -> str:
        """Who has the role, for an error."""
        if role != "operator":
            return f"who connects to {self.listener.path}"
        group = self.config.operator_group
        return f"operators: root, uid {os.geteuid()}" + (f" and members of the group {group}" if group else "")

    async def _accept(self, listener: Listener, sessions: trio.Nursery) -> None:
        accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener.socket))
        handler = functools.partial(self._serve, listener)
        await trio.serve_listeners(handler, [accepting], handler_nursery=sessions)

    def _role(self, peer: Peer, listener: Listener) -> str:
        if listener is self.inference:
            return "inference"
        is_operator = peer.uid in (0, os.geteuid()) or self._operator_gid in peer.groups
        return "operator" if is_operator else "user"

    async def _serve(self, listener: Listener, stream: trio.SocketStream) -> None:
        peer = peer_of(stream)
        session = Session(self, stream, peer, next(self._numbers), self._role(peer, listener))
        n_of_uid = sum(other.peer.uid == peer.uid for other in self.sessions)
        if n_of_uid >= self.max_sessions_of_uid or len(self.sessions) >= self.max_sessions:
            session.refusal = self._full(n_of_uid)
        try:
            await (self._refuse(session, stream) if session.refusal else self._admit(session))
        except Exception as bug:
            log.error(entry("ended by a bug", connection=session.number, bug=describe_bug(bug)))

    async def _admit(self, session: Session) -> None:
        facts = {"connection": session.number, "uid": session.peer.uid}
        self.sessions.add(session)
        log.info(entry("connected", **facts, pid=session.peer.pid, role=session.role))
        try:
            await session.run()
        finally:
            self.sessions.remove(session)
            log.info(entry("disconnected", **facts))

    async def _refuse(self, session: Session, stream: trio.SocketStream) -> None:
        """Says why, if the client says hello soon: it has a descriptor that others need."""
        if self._n_refused >= MAX_REFUSED:
            await trio.aclose_forcefully(stream)
            return
        self._n_refused += 1
        try:
            with trio.move_on_after(REFUSED_S):
                await session.run()
        finally:
            self._n_refused -= 1

    def _full(self, n_of_uid: int) -> RequestError:
        """There are too many connections, in all or of one user."""
        limit, value = "connections", self.max_sessions
        if n_of_uid >= self.max_sessions_of_uid:
            limit, value = "connections_of_user", self.max_sessions_of_uid
        what = f"there are {len(self.sessions)} connections, {n_of_uid} of this user"
        return RequestError("busy", what, limit=limit, value=value, retry_after_s=self.queue.retry_after_s())


async def serve(
    config: Config,
    listener: Listener,
    preload: Sequence[str],
    inference: Listener | None,
    engine: Child | None,
    read_config: Callable[[], Config],
) -> None:
    """Runs a daemon until SIGTERM or SIGINT; the second one ends it at once. SIGHUP reads the settings again; of a
    terminal that goes away it is the end. RequestError: no such model to preload."""
    daemon = Daemon(config, listener, inference=inference, engine=engine)
    for name in preload:
        entry = daemon.catalogue.find(name)
        daemon.residency.want(entry).keep_alive_s = math.inf
    async with trio.open_nursery() as nursery:
        await nursery.start(_obey_signals, daemon, read_config, nursery.cancel_scope)
        await daemon.run()
        nursery.cancel_scope.cancel()


async def _obey_signals(
    daemon: Daemon,
    read_config: Callable[[], Config],
    everything: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP and not sys.stderr.isatty():
                daemon.reload(read_config)
                continue
            log.info("%s: stopping", signal.Signals(number).name)
            if daemon.is_stopping:
                everything.cancel()
            daemon.stop()
