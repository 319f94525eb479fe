"""Who works on texts, and for whom: a few processes, so that a long job is in nobody's way for long.

A connection has one job at a time and a user two of four, so that no one keeps all others waiting.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from luce.errors import LuceError
from luced.errors import EngineError
from luced.front.journal import describe_bug
from luced.front.journal import entry as line
from luced.front.textworker import TextWorker, WorkerDiedError
from luced.gguf.catalogue import Entry

if TYPE_CHECKING:
    from luced.front.session import Session

N_WORKERS = 4
N_OF_USER = 2
PATIENCE_S = 0.05  # for a worker to become free, before another one is started
GRACE_S = 0.1  # for a job that nobody waits for any more: then its worker is ended
IDLE_S = 60.0  # after which those that were not needed end; one stays
MAX_RERUNS = 5  # of a job whose worker was killed

log = logging.getLogger("luced.texts")


@dataclass(eq=False)
class Job:
    session: Session
    entry: Entry
    name: str
    params: dict[str, Any]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)
    has_worker: bool = False
    result: dict[str, Any] | None = None
    error: LuceError | None = None

    def abandon(self) -> None:
        self.scope.deadline = trio.current_time() + (GRACE_S if self.has_worker else 0)


class TextPool:
    def __init__(self) -> None:
        self._jobs: trio.Nursery | None = None
        self._idle: list[TextWorker] = []  # who worked last is last
        self._least_idle = 0  # of late
        self._n_workers = 0
        self._freed = trio.Event()  # set, and replaced, when a worker becomes idle
        self._all = trio.Semaphore(N_WORKERS)
        self._of_user: defaultdict[int, trio.Semaphore] = defaultdict(lambda: trio.Semaphore(N_OF_USER))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ends the workers that are not needed any more. Never returns."""
        try:
            async with trio.open_nursery() as self._jobs:
                task_status.started()
                while True:
                    self._least_idle = len(self._idle)
                    await trio.sleep(IDLE_S)
                    for _ in range(min(self._least_idle, self._n_workers - 1)):
                        self._n_workers -= 1
                        await self._idle.pop(0).close()
        finally:
            for worker in self._idle:
                await worker.close()

    async def do(self, session: Session, entry: Entry, name: str, **params: Any) -> dict[str, Any]:
        """The result of a job of luced.text.worker. LuceError: it cannot be done, or took too much."""
        params |= {"path": str(entry.path), "version": entry.version}
        job = Job(session, entry, name, params)
        assert self._jobs is not None
        self._jobs.start_soon(self._work, job)
        try:
            await job.done.wait()
        except trio.Cancelled:
            job.abandon()
            raise
        if job.result is None:
            raise job.error or EngineError("shutting_down", "the daemon is shutting down")
        return job.result

    async def _work(self, job: Job) -> None:
        try:
            with job.scope:
                async with job.session.text_turn, self._of_user[job.session.peer.uid], self._all:
                    job.has_worker = True
                    job.result = await self._result(job)
        except LuceError as error:
            job.error = error
        except Exception as bug:  # its worker makes no sense, and is gone
            log.error(line(f"{job.name} failed", bug=describe_bug(bug)))
            job.error = LuceError("internal", f"{job.name} failed with {type(bug).__name__}")
        finally:
            job.done.set()

    async def _result(self, job: Job) -> dict[str, Any]:
        for n_left in reversed(range(MAX_RERUNS + 1)):
            worker = await self._take()
            is_well = False
            try:
                result = await worker.ask(job.name, job.params)
                is_well = True
                return result
            except LuceError:
                is_well = True
                raise
            except WorkerDiedError as death:
                log.warning(
                    line(f"worker {death}", worker=worker.pid, job=job.name, stage=death.stage, model=job.entry.name)
                )
                if not (death.is_innocent and n_left):
                    raise death.blame(job.entry.name) from None
            finally:
                await self._give(worker, is_well)
        raise AssertionError

    async def _take(self) -> TextWorker:
        if self._n_workers:
            with trio.move_on_after(PATIENCE_S):
                while not self._idle:
                    await self._freed.wait()
        worker = self._idle.pop() if self._idle else await self._start()
        self._least_idle = min(self._least_idle, len(self._idle))
        return worker

    async def _give(self, worker: TextWorker, is_well: bool) -> None:
        if is_well:
            self._idle.append(worker)
        else:
            self._n_workers -= 1
            await worker.close()
        self._freed.set()
        self._freed = trio.Event()

    async def _start(self) -> TextWorker:
        self._n_workers += 1
        try:
            return await TextWorker.start()
        except BaseException as error:
            self._n_workers -= 1
            if isinstance(error, OSError):
                what = f"the process that works on texts cannot be started: {error.strerror}"
                raise LuceError("internal", what, remedy="free memory, or allow more processes") from None
            raise
