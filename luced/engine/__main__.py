"""python -m luced.engine: the engine process, which `luced serve` starts with all its settings on the command line."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from luce.errors import LuceError
from luced.config import Config
from luced.engine import worker

parser = ArgumentParser(description=__doc__)
for name in ("--link-fd", "--batch", "--cache-bytes", "--state-bytes", "--threads"):
    parser.add_argument(name, type=int, required=True)
for name in ("--device", "--isa"):
    parser.add_argument(name, required=True)
a = parser.parse_args()
config = Config(
    Path(),
    device=a.device,
    isa=a.isa,
    n_threads=a.threads,
    n_batch=a.batch,
    cache_bytes=a.cache_bytes,
    state_bytes=a.state_bytes,
)
try:
    worker.main(a.link_fd, config)
except LuceError as error:  # its last words, which the front repeats
    sys.exit(f"{error}\n  -> {error.remedy}")
