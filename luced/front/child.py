"""A process that the front starts and talks with over a link: the engine, and those who work on texts."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Self

import trio


class Child:
    """It ends when its link does, so it does not outlive the front."""

    def __init__(self, process: trio.Process, stream: trio.SocketStream) -> None:
        self.process = process
        self.stream = stream

    @classmethod
    async def start(cls, command: Callable[[int], Sequence[str]], stdout: int, stderr: int | None = None) -> Self:
        """Runs what `command` gives for the descriptor of its end of the link, in a session of its own: Ctrl-C in the
        terminal is for the front alone. OSError: it cannot be run."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await trio.lowlevel.open_process(
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
        return cls(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)))

    async def end(self) -> int:
        """Kills it if it still runs; its exit status (negative: the signal)."""
        with trio.CancelScope(shield=True):
            if self.process.poll() is None:
                self.process.kill()
            status: int = await self.process.wait()
            await self.stream.aclose()
        return status


def describe_exit(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
