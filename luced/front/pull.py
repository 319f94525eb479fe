"""Fetching a model from the hub into a folder of models."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from luced.front.hub import CANNOT_CREATE, IO_ERROR, Hub, PullError, RemoteModel
from luced.front.incoming import Incoming, Report, is_here
from luced.gguf.digests import Origin

SPARE_BYTES = 64 << 20  # of the disk, left free
FULL = (errno.ENOSPC, errno.EDQUOT)


def pull(hub: Hub, model: RemoteModel, folder: Path, report: Report) -> Path:
    """The path of the model's (first) file, FOLDER/OWNER/REPO/NAME; all parts of a split model appear together.

    Reports `start` (files, bytes, path), `check` and `fetch` (file, done, total: bytes of that file), `done` (path,
    fetched: bytes that came now). PullError: why it is not here; what has come stays for the next try.
    """
    targets = [folder / model.repo / file.name for file in model.files]
    source = f"hf:{model.repo}:{model.type or model.stem}@{model.revision}"
    report("start", files=[file.name for file in model.files], bytes=model.n_bytes, path=str(targets[0]))
    n_fetched = 0
    try:
        with ExitStack() as stack:
            incoming: dict[str, Incoming] = {}
            for file, target in zip(model.files, targets, strict=True):
                target.parent.mkdir(parents=True, exist_ok=True)
                origin = Origin(file.n_bytes, file.sha256, source)
                if not is_here(target, origin, report):
                    incoming[file.name] = stack.enter_context(Incoming(target, origin, report))
            _check_space(folder, sum(part.origin.n_bytes - part.n_bytes for part in incoming.values()))
            for file in model.files:
                if part := incoming.get(file.name):
                    for at, data in hub.read(model, file, part):
                        part.write(at, data)
                        n_fetched += len(data)
                        report("fetch", file=file.name, done=part.n_bytes, total=file.n_bytes)
                    part.finish()
            for part in incoming.values():
                part.place()
    except OSError as error:
        raise _explain(error, folder) from error
    report("done", path=str(targets[0]), fetched=n_fetched)
    return targets[0]


def _check_space(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if need + SPARE_BYTES > free and need:
        message = f"{need / 1e9:.2f} GB are to be fetched, {folder} has {free / 1e9:.2f} GB free"
        remedy = "free some (`luced rm` removes models), or set pull_dir to a folder on another disk"
        raise PullError(message, remedy, CANNOT_CREATE)


def _explain(error: OSError, folder: Path) -> PullError:
    if error.errno in FULL:
        message = f"the disk is full: {error.strerror}, {shutil.disk_usage(folder).free / 1e6:.0f} MB free in {folder}"
        return PullError(message, "what has come is kept: free some, then run it again and it goes on", IO_ERROR)
    if isinstance(error, PermissionError):
        message = f"{error.filename or folder}: {os.strerror(error.errno or errno.EACCES)}"
        return PullError(message, "run it as the owner of that folder, or set pull_dir to one of yours", CANNOT_CREATE)
    message = f"{error.filename or folder}: {error.strerror or error}"
    return PullError(message, "correct that, then run it again", IO_ERROR)
