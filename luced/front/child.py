"""A process that the front starts and talks with over a link: the engine, and those who work on texts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from luced.config import Config

if TYPE_CHECKING:
    import trio


class Child:
    """It ends when its link does, so it does not outlive the front. Started without trio, which the first engine does
    not wait for; all else needs it."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self.process = process
        self._link = link

    @classmethod
    def start(cls, command: Callable[[int], Sequence[str]], stdout: int, stderr: int | None = None) -> Self:
        """Runs what `command` gives for the descriptor of its end of the link, in a session of its own: Ctrl-C in the
        terminal is for the front alone. OSError: it cannot be run."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(
                    [*command(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    @cached_property
    def stream(self) -> trio.SocketStream:
        import trio

        return trio.SocketStream(trio.socket.from_stdlib_socket(self._link))

    async def wait(self) -> int:
        """Its exit status (negative: the signal)."""
        import trio

        if self.process.poll() is None:
            fd = os.pidfd_open(self.process.pid)
            try:
                await trio.lowlevel.wait_readable(fd)
            finally:
                os.close(fd)
        return self.process.wait()

    async def end(self) -> int:
        """Kills it if it still runs; its exit status."""
        import trio

        with trio.CancelScope(shield=True):
            if self.process.poll() is None:
                self.process.kill()
            status = await self.wait()
            await self.stream.aclose()
        return status


def command_of(config: Config) -> list[str]:
    """What runs the engine."""
    # -P: what lies in the folder where the daemon was started is no module of ours.
    return [
        *(sys.executable, "-P", "-m", "luced.engine"),
        *("--device", config.device, "--isa", config.isa, "--threads", str(config.n_threads)),
        *("--batch", str(config.n_batch), "--cache-bytes", str(config.cache_bytes)),
        *("--state-bytes", str(config.state_bytes)),
    ]


def start_engine(command: Sequence[str]) -> Child:
    """Runs `command --link-fd N`. OSError: it cannot be run."""
    return Child.start(lambda fd: [*command, "--link-fd", str(fd)], subprocess.PIPE, subprocess.STDOUT)


def describe_exit(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
