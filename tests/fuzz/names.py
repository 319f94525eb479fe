"""Files of any name, and any name asked for: a listing that the wire can carry, one model or why there is none."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgpack
import pytest

from luced.config import Config
from luced.front.shelf import describe_models
from luced.gguf.catalogue import Catalogue
from tests.fuzz.choices import Choices, typed

NAMES = (
    b"a.gguf", b"A.GGUF", b".gguf", b"a-Q4_K_M.gguf", b"a-Q8_0.gguf", b"a-00001-of-00002.gguf",
    b"a-00002-of-00002.gguf", b"a-00000-of-99999.gguf", b"models--x--y", b"models--", b"mmproj-a.gguf", b"\xff.gguf",
    b"x:y.gguf", b"\n.gguf",
)  # fmt: skip


def fuzz_names(data: bytes) -> None:
    choices = Choices(data)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("luced.gguf.catalogue.packaged_files", list)  # looking for them takes long
        for _ in range(choices.below(6)):
            _make(choices, os.fsencode(folder))
        catalogue = Catalogue([Path(folder)], {choices.text(): choices.text()} if choices.flag() else None)
        config = Config(Path("/socket"), default_model=choices.text())
        rows = describe_models(catalogue, config)
        assert len({row["name"].lower() for row in rows}) == len(rows)
        msgpack.packb(rows)
        for name in (choices.text(), os.fsdecode(choices.rest()), *(row["name"] for row in rows)):
            with typed("unknown_model"):
                entry = catalogue.find(name)
                msgpack.packb([entry.name, str(entry.path), entry.n_bytes])


def _make(choices: Choices, folder: bytes) -> None:
    """A file, or a folder with one inside."""
    name = choices.pick(NAMES) if choices.flag() else choices.blob().translate(None, b"\0/")[:200]
    path = os.path.join(folder, name)
    if name in (b"", b".", b"..") or os.path.exists(path):
        return
    if choices.flag():
        os.mkdir(path)
        path = os.path.join(path, choices.pick(NAMES))
    with open(path, "wb") as file:
        file.write(b"GGUF")
