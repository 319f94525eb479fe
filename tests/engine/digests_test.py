"""A file that is not what was fetched is not loaded."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from luced.engine import offline
from luced.errors import ModelError
from luced.gguf import digests
from luced.gguf.reader import open_gguf
from tests.gguf.digests_test import damage, fetched
from tests.tinygguf import tiny_chat_model


@pytest.mark.parametrize("tensor", ["token_embd.weight", "blk.0.ffn_down.weight"])
def test_a_wrong_byte_in_any_tensor(tmp_path: Path, tensor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "CHUNK_BYTES", 4096)
    path = tiny_chat_model(tmp_path / "tiny.gguf")
    fetched(path, path.read_bytes())
    later_ns = path.stat().st_ctime_ns + 10**9  # the clock of files is coarse
    monkeypatch.setattr(os, "utime", functools.partial(os.utime, ns=(later_ns, later_ns)))
    with offline.resident(path):
        assert not digests.is_due(path)
    with open_gguf(path) as file:
        offset = file.tensors[tensor].offset
    damage(path, offset)
    digests.mark_unchecked(path)
    with pytest.raises(ModelError, match="are not what was fetched") as caught, offline.resident(path):
        pass
    begin = offset // 4096 * 4096
    assert caught.value.data["ranges"] == [[str(path), begin, min(begin + 4096, path.stat().st_size)]]
    damage(path, offset)
    with offline.resident(path):
        pass
