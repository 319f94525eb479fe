"""`luced serve` as a process of its own."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import luce

START_S = 60
SERVE = (sys.executable, "-m", "luced", "serve")


class Served:
    """A running daemon, ready within `with` and ended by SIGTERM after it. `lines` is its log. `under`: the command
    that runs it."""

    def __init__(self, path: Path, *options: str | Path, under: Sequence[str] = ()) -> None:
        self.path = path
        self.lines: list[str] = []
        self._command = [*under, *SERVE, "--socket", str(path), *map(str, options)]
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
