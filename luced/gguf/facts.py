"""What the header of a model file says of the model as a whole; read once as long as the file does not change."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from luced.gguf.formats import FILE_TYPES
from luced.gguf.reader import File, open_gguf


@dataclass(frozen=True)
class Facts:
    """What a file's header says. quantisation: as `Q4_K_M`. n_ctx: 0 if it does not say."""

    architecture: str
    quantisation: str
    n_parameters: int
    n_ctx: int


def facts_of(path: Path) -> Facts:
    """ModelError: what is wrong with the file."""
    try:
        status = path.stat()
    except OSError:
        return _facts(path, 0, 0)  # opening it says why
    return _facts(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4096)
def _facts(path: Path, mtime_ns: int, size: int) -> Facts:
    with open_gguf(path) as file:
        architecture = file.metadata.str("general.architecture")
        return Facts(
            architecture,
            _quantisation(file),
            sum(math.prod(tensor.dims) for tensor in file.tensors.values()),
            file.metadata.count(f"{architecture}.context_length", 0),
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
