"""Where model files lie: in folders, in the cache of huggingface-hub, in installed packages."""

from __future__ import annotations

import base64
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from luced.gguf.reader import part_name

MAX_DEPTH = 8  # folders inside a folder
PROJECTOR = "mmproj"  # begins the name of a file with the vision part of a model, which is no model of its own

Place = Literal["folder", "hub", "package"]


@dataclass(frozen=True)
class ModelFile:
    """A model file, or the first part of one. `repo` is OWNER/REPO where its folders say so, else empty."""

    path: Path
    place: Place
    repo: str = ""


def find_files(folder: Path) -> Iterator[ModelFile]:
    """All below `folder`, by path. A folder models--OWNER--REPO is read as huggingface-hub writes it."""
    for path in _walk(folder, MAX_DEPTH):
        if path.name.startswith("models--") and path.is_dir():
            repo = path.name.removeprefix("models--").replace("--", "/")
            for inner in _walk(_snapshot(path), MAX_DEPTH):
                if is_model(inner):
                    yield ModelFile(inner, "hub", repo)
        elif is_model(path):
            parts = path.relative_to(folder).parts
            yield ModelFile(path, "folder", "/".join(parts[:2]) if len(parts) > 2 else "")


def packaged_files() -> list[ModelFile]:
    """The GGUF files that installed distributions have brought."""
    return list(_packaged(tuple((path, _mtime_ns(path)) for path in sys.path)))


def is_model(path: Path) -> bool:
    """By its name; a later part whose first is here is no model of its own."""
    if path.suffix != ".gguf" or path.name.startswith(PROJECTOR):
        return False
    part = part_name(path)
    return part is None or part[1] == 1 or not path.with_name(f"{part[0]}-00001-of-{part[2]:05}.gguf").exists()


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Files below a folder, by path, and the folders of huggingface-hub in it, unopened. Left out are hidden ones, and
    those whose names are no UTF-8: no client could name them."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry for entry in entries if _is_utf8(entry.name)), key=lambda entry: entry.name)
    except OSError:  # missing, or not to be read by us
        return
    for entry in found:
        if entry.name.startswith(("models--", "datasets--", "spaces--")):
            yield Path(entry.path)
        elif not entry.name.startswith("."):
            if not entry.is_dir():
                yield Path(entry.path)
            elif depth:
                yield from _walk(Path(entry.path), depth - 1)


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _snapshot(repo: Path) -> Path:
    """The revision that counts: the one that `main` was when it was last fetched, else the newest."""
    snapshots = repo / "snapshots"
    try:
        return snapshots / (repo / "refs" / "main").read_text().strip()
    except OSError:
        pass
    try:
        return max(snapshots.iterdir(), key=lambda path: path.stat().st_mtime_ns, default=snapshots)
    except OSError:
        return snapshots


def _mtime_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def recorded_sha256(path: Path) -> str:
    """What a file should have: the name of its blob in the cache of huggingface-hub, or what the package that brought
    it has recorded; empty: nothing is known."""
    blob = path.resolve()
    if re.fullmatch("[0-9a-f]{64}", blob.name):
        return blob.name
    for distribution in _distributions():
        for file in distribution.files or ():
            if file.name == path.name and file.hash is not None and file.hash.mode == "sha256":
                return base64.urlsafe_b64decode(file.hash.value + "=").hex()
    return ""


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """Those with GGUF files."""
    for distribution in importlib.metadata.distributions():
        if ".gguf" in (distribution.read_text("RECORD") or ""):  # quicker than to parse them all
            yield distribution


@lru_cache(maxsize=1)
def _packaged(folders: tuple[tuple[str, int], ...]) -> tuple[ModelFile, ...]:
    """`folders`, those of sys.path with their times, change when a distribution is installed."""
    found = []
    for distribution in _distributions():
        files = [Path(str(file.locate())).resolve() for file in distribution.files or () if file.suffix == ".gguf"]
        found += [ModelFile(path, "package") for path in files if path.is_file() and is_model(path)]
    return tuple(sorted(found, key=lambda file: file.path.name))
