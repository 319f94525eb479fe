"""`luced serve` as a process of its own."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import luce

START_S = 60
SERVE = (sys.executable, "-m", "luced", "serve")
SERVE_WITH = (sys.executable, str(Path(__file__).with_name("serve_with.py")))
FAULTY_ENGINE = (sys.executable, str(Path(__file__).with_name("faulty_engine.py")))
# Of an answer of a thousand tokens: it does not fit between the engine and who does not read, so it cannot end unread.
BULKY: Any = {"ignore_eos": True, "logprobs": 32}


class Served:
    """A running daemon, ready within `with` and ended by SIGTERM after it. `lines` is its log. `under`: the command
    that runs it. `fault`: its engine is faulty_engine.py with these words."""

    def __init__(
        self, path: Path, *options: str | Path, under: Sequence[str] = (), fault: Sequence[object] = ()
    ) -> None:
        self.path = path
        self.lines: list[str] = []
        serve = [*SERVE_WITH, *FAULTY_ENGINE, *map(str, fault), "serve"] if fault else SERVE
        self._command = [*under, *serve, "--socket", str(path), *map(str, options)]
        self._grown = threading.Condition()

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.wait_for("listening at")
        except BaseException:
            self.process.kill()
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self.process.poll() is None:
                assert self.stop() == 0, self.lines
        finally:
            self.process.kill()
            self._close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status."""
        self.process.send_signal(number)
        return self.process.wait(START_S)

    def client(self) -> luce.Client:
        return luce.Client(self.path, timeout=60)

    def wait_for(self, pattern: str) -> str:
        """The first line of the log that has this pattern, once it is there."""
        with self._grown:
            assert self._grown.wait_for(lambda: self._find(pattern) or self.process.poll() is not None, START_S), (
                pattern
            )
            line = self._find(pattern)
            assert line is not None, self.lines
            return line

    def engine_pid(self) -> int:
        """Of the engine that is ready now."""
        self.wait_for("engine is ready")
        with self.client() as client:
            pid = client.status().engine.pid
            assert isinstance(pid, int)
            return pid

    @contextmanager
    def stopped_engine(self) -> Iterator[int]:
        """Its pid. No machine is so fast that this engine ends anything within `with`."""
        pid = self.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait_for_stop(self) -> int:
        """The pid of an engine that stops itself at a step (fault: stop), once it has."""
        end = time.monotonic() + START_S
        with self.client() as client:
            while (pid := client.status().engine.pid) is None or not is_stopped(pid):
                assert time.monotonic() < end, self.lines
            return pid

    def _find(self, pattern: str) -> str | None:
        return next((line for line in self.lines if re.search(pattern, line)), None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.lines.append(line)
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def _close(self) -> None:
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> bool:
    """Until a process that need not be our child has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], START_S)[0])
    finally:
        os.close(fd)
