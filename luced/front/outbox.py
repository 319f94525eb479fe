"""What a connection has to send: frames in order, at once while the client keeps up with them."""

from __future__ import annotations

import os

import trio

FRAMES = 32  # that wait to be sent; then whoever has more to say waits too


class Outbox:
    """`run` sends what could not be sent at once."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._frames, self._waiting = trio.open_memory_channel[bytes](FRAMES)
        self._n_waiting = 0  # with the one that is being sent

    @property
    def is_behind(self) -> bool:
        return self._n_waiting > 0

    async def send(self, frame: bytes) -> None:
        if self.try_send(frame):
            return
        self._n_waiting += 1
        try:
            await self._frames.send(frame)
        except BaseException:
            self._n_waiting -= 1
            raise

    def try_send(self, frame: bytes) -> bool:
        """Never waits. False: others do, and nothing was done."""
        if self.is_behind:
            return False
        try:
            n_bytes = os.write(self._stream.socket.fileno(), frame)
        except OSError:  # full, or gone: `run` will see
            n_bytes = 0
        if n_bytes < len(frame):
            self._frames.send_nowait(frame[n_bytes:])
            self._n_waiting += 1
        return True

    def close(self) -> None:
        """`run` ends when all is sent."""
        self._frames.close()

    async def run(self, stall_s: float) -> None:
        """trio.BrokenResourceError: the client is gone. trio.TooSlowError: it has read nothing for stall_s."""
        async for frame in self._waiting:
            with trio.fail_after(stall_s):
                await self._stream.send_all(frame)
            self._n_waiting -= 1
