"""Digests of a model file, one for each 16 MiB, kept beside it as FILE.digests: they name the bytes that are wrong.

The first line is JSON (what the file is), each further line the BLAKE2b of one chunk, in hexadecimal, in order. A file
that is still being fetched has the same beside it, as far as it has come.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from luced.errors import ModelError

CHUNK_BYTES = 16 << 20
DIGEST_BYTES = 32
READ_BYTES = 1 << 20
MAX_THREADS = 4
RECHECK_S = 7 * 24 * 3600


@dataclass(frozen=True)
class Origin:
    """What a file should be: its size, the SHA-256 of all of it, and where it comes from (hf:OWNER/REPO@REVISION)."""

    n_bytes: int
    sha256: str
    source: str


@dataclass(frozen=True)
class Digests:
    """`chunks` are those that are known, from the first on."""

    origin: Origin
    chunks: tuple[bytes, ...] = ()

    @property
    def is_complete(self) -> bool:
        return len(self.chunks) == n_chunks(self.origin.n_bytes)


@dataclass(frozen=True)
class BadRange:
    """Bytes begin up to end - 1 of a file are not what its digests say."""

    path: Path
    begin: int
    end: int


def path_of(file: Path) -> Path:
    """Where the digests of a file are."""
    return file.with_name(file.name + ".digests")


def is_due(file: Path) -> bool:
    """Whether a load should compare this file: it was not since it last changed, or not for RECHECK_S. Hashing takes
    as long as loading; to do it each time would cost more than it finds."""
    try:
        checked_ns = path_of(file).stat().st_mtime_ns
        return file.stat().st_ctime_ns >= checked_ns or time.time_ns() - checked_ns > RECHECK_S * 10**9
    except OSError:
        return False  # it has no digests


def mark_checked(file: Path) -> None:
    """It was compared just now, and is in order. Where we may not write, the next load compares it again."""
    with suppress(OSError):
        os.utime(path_of(file))


def mark_unchecked(file: Path) -> None:
    """The next load compares it."""
    os.utime(path_of(file), ns=(0, 0))


def digest_of(chunk: bytes) -> bytes:
    return hashlib.blake2b(chunk, digest_size=DIGEST_BYTES).digest()


def n_chunks(n_bytes: int) -> int:
    return -(-n_bytes // CHUNK_BYTES)


def read(path: Path) -> Digests | None:
    """The digests in this file; None: there are none. A last line that was not written to its end does not count.

    ModelError("bad_model_file"): it is damaged.
    """
    try:
        head, *lines = path.read_text().split("\n")
        fields = json.loads(head)
        if fields.pop("chunk_bytes") != CHUNK_BYTES:
            raise ValueError
        chunks = tuple(bytes.fromhex(line) for line in lines[:-1])
        if any(len(chunk) != DIGEST_BYTES for chunk in chunks):
            raise ValueError
        origin = Origin(**fields)
        if [type(value) for value in vars(origin).values()] != [int, str, str]:
            raise ValueError
        return Digests(origin, chunks)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        remedy = "remove it: the model can be used without"
        raise ModelError("bad_model_file", f"{path} is damaged", remedy, file=str(path)) from None


class Hasher:
    """Takes the bytes of a file in order, and writes the digest of each chunk to `out` as soon as it is complete."""

    def __init__(self, origin: Origin, out: IO[str]) -> None:
        self.n_bytes = 0
        self._sha256 = hashlib.sha256()
        self._chunk = _blake()
        self._out = out
        out.write(json.dumps({**vars(origin), "chunk_bytes": CHUNK_BYTES}) + "\n")
        out.flush()

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self._sha256.update(view)
        while view:
            room = CHUNK_BYTES - self.n_bytes % CHUNK_BYTES
            self._chunk.update(view[:room])
            self.n_bytes += len(view[:room])
            view = view[room:]
            if self.n_bytes % CHUNK_BYTES == 0:
                self._write()

    def finish(self) -> None:
        """The file ends here."""
        if self.n_bytes % CHUNK_BYTES:
            self._write()

    def _write(self) -> None:
        self._out.write(self._chunk.hexdigest() + "\n")
        self._out.flush()
        self._chunk = _blake()


class Check:
    """Compares files with their digests in threads of its own; hashing leaves Python's lock to others.

    Use as a context manager: leaving ends the threads. Files without complete digests are not looked at.
    """

    def __init__(self, paths: Sequence[Path], n_threads: int = 0) -> None:
        """ModelError: digests are damaged, or a file has another size than they say."""
        self.source = ""  # of the files that have digests
        self.total_bytes = self.done_bytes = 0
        self.error: OSError | None = None
        self._work: list[tuple[Path, int, bytes]] = []  # file, where the chunk begins, its digest
        for path in paths:
            self._add(path)
        self._todo: Iterator[tuple[Path, int, bytes]] = iter(self._work)
        self._bad: list[BadRange] = []
        self._lock = threading.Lock()
        self._stopped = False
        n = min(n_threads or max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 4)), len(self._work))
        self._threads = [threading.Thread(target=self._run, name="digests", daemon=True) for _ in range(n)]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> bool:
        """True: all is compared."""
        for thread in self._threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def raise_if_bad(self) -> None:
        """ModelError("bad_model_file"): bytes are wrong, and which; or a file cannot be read."""
        try:
            bad = self.bad_ranges()
        except OSError as error:
            raise ModelError("bad_model_file", f"{self._work[0][0]} cannot be read: {error.strerror}") from None
        if bad:
            raise check_failed(bad, self.source)

    def bad_ranges(self) -> list[BadRange]:
        """What is wrong so far; adjacent chunks are one range. OSError: a file cannot be read."""
        if self.error is not None:
            raise self.error
        ranges: list[BadRange] = []
        for bad in sorted(self._bad, key=lambda bad: (bad.path, bad.begin)):
            if ranges and (ranges[-1].path, ranges[-1].end) == (bad.path, bad.begin):
                bad = BadRange(bad.path, ranges.pop().begin, bad.end)
            ranges.append(bad)
        return ranges

    def __enter__(self) -> Check:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()

    def _add(self, path: Path) -> None:
        digests = read(path_of(path))
        if digests is None or not digests.is_complete:
            return
        n_bytes = path.stat().st_size
        if n_bytes != digests.origin.n_bytes:
            message = f"{path} has {n_bytes} bytes, {digests.origin.n_bytes} were fetched"
            raise ModelError("bad_model_file", message, remedy(digests.origin.source), file=str(path))
        self.source = digests.origin.source
        self.total_bytes += n_bytes
        self._work += [(path, i * CHUNK_BYTES, digest) for i, digest in enumerate(digests.chunks)]

    def _run(self) -> None:
        while not self._stopped:
            with self._lock:
                path, begin, digest = next(self._todo, (None, 0, b""))
            if path is None:
                return
            try:
                n_bytes, found = _digest(path, begin)
            except OSError as error:
                self.error = error
                return
            with self._lock:
                self.done_bytes += n_bytes
                if found != digest:
                    self._bad.append(BadRange(path, begin, begin + n_bytes))


def check_failed(ranges: Sequence[BadRange], source: str) -> ModelError:
    """The error that these bytes are wrong."""
    first = ranges[0]
    more = f" ({len(ranges) - 1} more such ranges)" if len(ranges) > 1 else ""
    message = f"{first.path}: bytes {first.begin} to {first.end - 1} are not what was fetched{more}"
    facts = [[str(r.path), r.begin, r.end] for r in ranges]
    return ModelError("bad_model_file", message, remedy(source), file=str(first.path), ranges=facts)


def remedy(source: str) -> str:
    return f"repair it: luced pull {source.partition('@')[0]}"


def _blake() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def _digest(path: Path, begin: int) -> tuple[int, bytes]:
    """(bytes, digest) of the chunk that begins there."""
    hasher, n_bytes = _blake(), 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while data := os.pread(fd, min(READ_BYTES, CHUNK_BYTES - n_bytes), begin + n_bytes):
            hasher.update(data)
            n_bytes += len(data)
    finally:
        os.close(fd)
    return n_bytes, hasher.digest()
