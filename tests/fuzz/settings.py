"""Any bytes as luced.toml, and any text as an environment variable: settings, or the error that names what is wrong."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from luced import config
from tests.fuzz.choices import typed


def fuzz_settings(data: bytes) -> None:
    """Of two lines that begin with $ the first is the value of LUCE_N_CTX; all the rest is the file."""
    variable, _, text = data.partition(b"\n") if data.startswith(b"$") else (b"", b"", data)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "luce", "luced.toml")
        path.parent.mkdir()
        path.write_bytes(text)
        patch.setenv("XDG_CONFIG_HOME", folder)
        if value := variable[1:].replace(b"\0", b"").decode(errors="surrogateescape"):
            patch.setenv("LUCE_N_CTX", value)
        with typed("bad_config"):
            json.dumps(config.rows(config.load()))
