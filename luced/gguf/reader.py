"""Opens GGUF model files: everything is checked before any tensor can be seen. Plain Python.

A model may be split over several files NAME-00001-of-0000N.gguf. The first holds the metadata; each holds tensors.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from luced.gguf.header import Part, TensorInfo, open_part
from luced.gguf.metadata import Metadata, bad_file

MAX_PARTS = 1024  # each is looked for
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<n>\d{5})\.gguf")


class File:
    """An open model file. Use as a context manager, or call close()."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self.path = parts[0].path
        self.paths = [part.path for part in parts]
        self.metadata = Metadata(self.path, parts[0].values)
        self.tensors = {name: info for part in parts for name, info in part.tensors.items()}

    def view(self, tensor: TensorInfo) -> memoryview:
        """The tensor's bytes, read-only and uncopied."""
        return self._parts[tensor.part].data[tensor.offset : tensor.offset + tensor.n_bytes]

    def let_go(self) -> None:
        """The metadata is gone. The tensors' bytes stay in the page cache, and are no more this process's memory until
        they are read again."""
        for part in self._parts:
            part.values.clear()
            part.mapping.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: Path | str) -> File:
    """Opens and checks a model file, with its other parts if it is split. ModelError("bad_model_file"): what is wrong,
    with file, key or tensor, and byte offset."""
    parts = [open_part(Path(path), 0)]
    try:
        n_parts = parts[0].values.get("split.count", 1)
        if n_parts > 1:
            for i, other in enumerate(_part_paths(parts[0], n_parts)[1:], 1):
                parts.append(open_part(other, i))
            _check_split(parts)
        return File(parts)
    except BaseException:
        for part in parts:
            part.close()
        raise


def part_name(path: Path) -> tuple[str, int, int] | None:
    """(stem, number from 1, count) of a file that is named as part of a split model; else None."""
    match = _PART_NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match["no"]) <= int(match["n"]) <= MAX_PARTS:
        return None
    return match["stem"], int(match["no"]), int(match["n"])


def split_name(name: str) -> str:
    """What all parts of a split model are called; of another file its name without .gguf."""
    part = part_name(Path(name))
    return part[0] if part else name.removesuffix(".gguf")


def n_parts(name: str) -> int:
    """How many files a model has of which one is named so."""
    part = part_name(Path(name))
    return part[2] if part else 1


def _part_paths(first: Part, n_parts: int) -> list[Path]:
    named = part_name(first.path)
    if named is None or named[2] != n_parts:
        raise bad_file(first.path, f"is one of {n_parts} parts, but is not named NAME-00001-of-{n_parts:05}.gguf")
    paths = [first.path.with_name(f"{named[0]}-{no:05}-of-{n_parts:05}.gguf") for no in range(1, n_parts + 1)]
    if first.values.get("split.no", 0) != 0 or named[1] != 1:
        raise bad_file(first.path, f"is not the first of {n_parts} parts: open {paths[0].name}")
    for path in paths:
        if not path.exists():
            raise bad_file(first.path, f"the part {path.name} is missing next to it")
    return paths


def _check_split(parts: list[Part]) -> None:
    names: dict[str, Path] = {}
    for i, part in enumerate(parts):
        for key, expected in (("split.no", i), ("split.count", len(parts))):
            if part.values.get(key) != expected:
                raise bad_file(part.path, f"must be {expected}, is {part.values.get(key, 'missing')}", key=key)
        for name in part.tensors:
            if name in names:
                raise bad_file(part.path, f"is in {names[name].name} too", tensor=name)
            names[name] = part.path
    n_tensors = parts[0].values.get("split.tensors.count", len(names))
    if n_tensors != len(names):
        raise bad_file(parts[0].path, f"is {n_tensors}, the parts have {len(names)}", key="split.tensors.count")
