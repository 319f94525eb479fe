"""A file on its way here: what has come so far, with its digests; kept if interrupted, in the end moved into place."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from luced.errors import ModelError
from luced.front.hub import CANNOT_CREATE, IO_ERROR, PullError
from luced.gguf import digests
from luced.gguf.digests import READ_BYTES, Hasher, Origin


class Report(Protocol):
    """Told of each step, with its name and what there is to say of it."""

    def __call__(self, event: str, **fields: Any) -> None: ...


class Incoming:
    """TARGET.partial, appended to, locked against a second fetcher. Use as a context manager.

    What was there before is read again and kept as far as its digests say that it is in order.
    """

    def __init__(self, target: Path, origin: Origin, report: Report) -> None:
        self.origin = origin
        self._target = target
        self._partial = target.with_name(target.name + ".partial")
        self._report = report

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._file = stack.enter_context(self._partial.open("a+b", buffering=0))
            self._take_lock()
            known = self._known()
            self._digests = stack.enter_context(digests.path_of(self._partial).open("w"))
            self._restore(known)
            self._files = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    @property
    def n_bytes(self) -> int:
        return self._hasher.n_bytes

    def write(self, at: int, data: bytes) -> None:
        """Appends; an offset of 0 starts all over. OSError: what was written before it stays."""
        if at == 0 and self.n_bytes:
            self._start_over()
        view = memoryview(data)
        while view:
            n = self._file.write(view)
            self._hasher.update(view[:n])
            view = view[n:]

    def finish(self) -> None:
        """All has come. PullError: it is not what the hub has; then nothing of it stays."""
        self._hasher.finish()
        if self._hasher.sha256 != self.origin.sha256:
            message = f"{self._target.name} came with SHA-256 {self._hasher.sha256}, the hub has {self.origin.sha256}"
            self._start_over()
            raise PullError(message, "run it again: what came was thrown away", IO_ERROR)
        os.fsync(self._file.fileno())

    def place(self) -> None:
        """Makes it a model. Its digests go first, so that it is never without. The first load reads it back."""
        os.replace(digests.path_of(self._partial), digests.path_of(self._target))
        os.replace(self._partial, self._target)
        digests.mark_unchecked(self._target)
        folder = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._partial.stat().st_ino == os.fstat(self._file.fileno()).st_ino:  # else it was just moved into place
                return
        except (BlockingIOError, FileNotFoundError):
            pass
        raise PullError(f"another luced is fetching {self._target.name}", "wait for it, or end it", CANNOT_CREATE)

    def _known(self) -> tuple[bytes, ...] | None:
        """Digests of what came before; None: it was another file, or nobody knows."""
        try:
            found = digests.read(digests.path_of(self._partial))
        except ModelError:
            return None
        return found.chunks if found is not None and found.origin.sha256 == self.origin.sha256 else None

    def _restore(self, known: tuple[bytes, ...] | None) -> None:
        """Reads what came before. Bytes after the last known digest are kept: the SHA-256 of all is yet to come."""
        self._hasher = Hasher(self.origin, self._digests)
        n_bytes = os.fstat(self._file.fileno()).st_size if known is not None else 0
        for begin in range(0, min(n_bytes, self.origin.n_bytes), digests.CHUNK_BYTES):
            chunk = os.pread(self._file.fileno(), min(digests.CHUNK_BYTES, self.origin.n_bytes - begin), begin)
            i = begin // digests.CHUNK_BYTES
            if known is not None and i < len(known) and digests.digest_of(chunk) != known[i]:
                break
            self._hasher.update(chunk)
            self._report("check", file=self._target.name, done=self.n_bytes, total=self.origin.n_bytes)
        self._file.truncate(self.n_bytes)

    def _start_over(self) -> None:
        self._file.truncate(0)
        self._digests.seek(0)
        self._digests.truncate()
        self._hasher = Hasher(self.origin, self._digests)


def is_here(target: Path, origin: Origin, report: Report) -> bool:
    """Whether this file is in place and in order. One without digests gets them; a damaged one becomes what came
    before, so that only what is wrong from there on is fetched. PullError: it is a file of somebody else.
    """
    if not target.exists():
        return False
    known = digests.read(digests.path_of(target))
    if known is None:
        _adopt(target, origin, report)
        return True
    if known.origin.sha256 != origin.sha256:  # the repository has a newer one
        return False
    try:
        with digests.Check([target]) as check:
            while not check.wait(0.1):
                report("check", file=target.name, done=check.done_bytes, total=check.total_bytes)
            is_in_order = not check.bad_ranges() and known.is_complete
    except ModelError:  # it has another size
        is_in_order = False
    if not is_in_order:
        partial = target.with_name(target.name + ".partial")
        os.replace(digests.path_of(target), digests.path_of(partial))
        os.replace(target, partial)
    else:
        digests.mark_checked(target)
    return is_in_order


def _adopt(target: Path, origin: Origin, report: Report) -> None:
    new = digests.path_of(target).with_suffix(".new")
    with target.open("rb") as file, new.open("w") as out:
        hasher = Hasher(origin, out)
        while data := file.read(READ_BYTES):
            hasher.update(data)
            report("check", file=target.name, done=hasher.n_bytes, total=origin.n_bytes)
        hasher.finish()
    if hasher.sha256 != origin.sha256:
        new.unlink()
        raise PullError(f"{target} is there, and is not what the hub has", "move it away, or remove it", CANNOT_CREATE)
    os.replace(new, digests.path_of(target))
