"""Any bytes as the digests beside a model file: the file is compared, or the error says that they are damaged."""

from __future__ import annotations

import tempfile
from pathlib import Path

from luced.gguf.digests import Check, path_of
from tests.fuzz.choices import typed


def fuzz_digests(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.gguf")
        model.write_bytes(b"GGUF")
        path_of(model).write_bytes(data)
        with typed("bad_model_file"), Check([model]) as check:
            check.wait(10)
            check.raise_if_bad()
