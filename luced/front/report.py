"""Reports of requests that the engine dies of: a file for each, for those who mend luced. Nothing of a prompt."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from pathlib import Path
from typing import Any

import luced
from luced.front.journal import entry

MAX_REPORTS = 32  # the oldest make room

log = logging.getLogger("luced.report")


def write(folder: Path, facts: dict[str, Any]) -> str:
    """The name of the file, which its owner alone may read; empty: it could not be written, which is logged."""
    now = time.time()
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}.json"
    text = json.dumps({"luced": luced.__version__, "at": now, **facts}, indent=2)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.json"))[: -MAX_REPORTS + 1]:
            old.unlink()
        with open(folder / name, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
    except OSError as error:
        log.error(entry("no report is written", folder=folder, error=error.strerror))
        return ""
    return name
