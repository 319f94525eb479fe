"""Whether a model file is in order: its header, and its bytes as far as anything is known of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from luced.errors import ModelError
from luced.gguf.catalogue import Entry
from luced.gguf.digests import READ_BYTES, BadRange, Check, check_failed, mark_checked
from luced.gguf.files import recorded_sha256
from luced.gguf.reader import open_gguf

OnProgress = Callable[[str, int, int], None]  # name of the model, done, total bytes

HEADER, SHA256, DIGESTS = "header", "sha256", "digests"


@dataclass
class Verdict:
    """`checked`: the most that was compared: the header alone, the SHA-256 of each file, or each chunk's digest."""

    checked: str = HEADER
    problem: str = ""
    remedy: str = ""
    ranges: list[BadRange] = field(default_factory=list)


def verify(entry: Entry, progress: OnProgress) -> Verdict:
    """Reads the model's files. Of files in packages and in the cache of huggingface-hub the SHA-256 is recorded."""
    verdict = Verdict()
    try:
        with Check(entry.paths) as check:
            open_gguf(entry.path).close()
            if check.total_bytes == entry.n_bytes:
                verdict.checked = DIGESTS
            while not check.wait(0.1):
                progress(entry.name, check.done_bytes, check.total_bytes)
            verdict.ranges = check.bad_ranges()
            if verdict.ranges:
                raise check_failed(verdict.ranges, check.source)
            for path in entry.paths:
                mark_checked(path)
        if entry.place != "folder":
            _compare(entry, progress)
            verdict.checked = SHA256
    except ModelError as error:
        verdict.problem, verdict.remedy = str(error), error.remedy
    except OSError as error:
        verdict.problem = f"{error.filename}: {error.strerror}"
        verdict.remedy = "look for faults of the disk: `journalctl -k` tells of them"
    return verdict


def _compare(entry: Entry, progress: OnProgress) -> None:
    """With the SHA-256 that is recorded of each file. ModelError: it has another, or none is recorded."""
    done = 0
    for path in entry.paths:
        expected = recorded_sha256(path)
        if not expected:
            raise ModelError("bad_model_file", f"{path} is no link to a blob of the cache", "fetch it again")
        sha256 = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(READ_BYTES):
                sha256.update(data)
                done += len(data)
                progress(entry.name, done, entry.n_bytes)
        if sha256.hexdigest() != expected:
            message = f"{path} has SHA-256 {sha256.hexdigest()}, it should have {expected}"
            remedy = f"remove {path.resolve()} and fetch it again, with the program that fetched it"
            raise ModelError("bad_model_file", message, remedy, file=str(path))
