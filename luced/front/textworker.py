"""One process that works on texts (luced.text.worker): its start, one job at a time, and what it dies of."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import trio

from luce import wire
from luce.errors import LuceError, from_wire
from luced.errors import ModelError, RequestError
from luced.front.child import Child, describe_exit

# CPU seconds of each stage of a job. One MB of text that a tokenizer does not like takes 6 s, a template 0.1 s.
CPU_S = {"file": 20, "template": 5, "text": 20}
DATA_BYTES = 2 << 30  # of the process, with the vocabularies that it holds
NO_MEMORY = 3  # exit status of luced.text.worker
READ_BYTES = 1 << 16


class WorkerDiedError(Exception):
    """In the middle of a job. `stage`: file, template or text."""

    def __init__(self, status: int, stage: str) -> None:
        super().__init__(describe_exit(status))
        self.status = status
        self.stage = stage

    @property
    def is_innocent(self) -> bool:
        """The job did not do it: somebody killed the process."""
        return self.status in (-signal.SIGKILL, -signal.SIGTERM)

    def blame(self, model: str) -> LuceError:
        """The error of who asked."""
        if self.status == -signal.SIGXCPU:
            why = f"needed more than {CPU_S[self.stage]} s of CPU time"
        elif self.status in (NO_MEMORY, -signal.SIGABRT):
            why = f"needed more than {DATA_BYTES >> 20} MiB of memory"
        else:
            return LuceError("internal", f"the process that works on texts {self}", {"model": model})
        if self.stage == "file":
            what = f"to read the tokenizer and the chat template of {model} {why}"
            return ModelError("bad_model_file", what, "replace the file", model=model)
        if self.stage == "template":
            what = f"the chat template of {model} {why}, and was ended"
            remedy = "send less; if a short message fails too, the template is bad: use another file of this model"
            return RequestError("bad_template", what, remedy, model=model)
        what = f"to make tokens of this text {why}"
        return RequestError("bad_parameter", what, "send less text at once", model=model)


class TextWorker:
    def __init__(self, child: Child) -> None:
        self.pid = child.process.pid
        self._child = child
        self._connection = wire.TrustedConnection()

    @classmethod
    async def start(cls) -> TextWorker:
        """It gets ready on its own. OSError: it cannot be run."""

        def command(link_fd: int) -> list[str]:
            numbers = map(str, (link_fd, DATA_BYTES, *CPU_S.values()))
            return [sys.executable, "-P", "-m", "luced.text.worker", *numbers]

        return cls(await trio.to_thread.run_sync(Child.start, command, subprocess.DEVNULL))

    async def ask(self, job: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a job. LuceError: it cannot be done. WorkerDiedError. If it is cancelled, this worker is to be
        closed."""
        stage = "template" if job in ("chat", "infill") else "text"  # until it says otherwise
        try:
            await self._child.stream.send_all(wire.request(0, job, params))
            while data := await self._child.stream.receive_some(READ_BYTES):
                self._connection.feed(data)
                for event in self._connection:
                    if isinstance(event, wire.Notification):
                        stage = event.params["name"]
                        continue
                    assert isinstance(event, wire.Response), event
                    if event.error is not None:
                        raise from_wire(event.error)
                    result: dict[str, Any] = event.result
                    return result
        except trio.BrokenResourceError:
            pass
        raise WorkerDiedError(await self._child.wait(), stage)

    async def close(self) -> None:
        await self._child.end()
