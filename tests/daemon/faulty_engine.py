"""The engine with a faulty device (luced.device.faulty.Fault): faulty_engine.py HOW STEP TOKEN [BATCH] --link-fd N.

HOW-ahead: and its steps are launched before the last one is read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from luced.config import Config
from luced.device.choose import Chosen
from luced.device.cpu import Cpu
from luced.device.faulty import Fault, Faulty
from luced.engine.worker import main


def open_faulty(config: Config) -> Chosen:
    words, step, token, *_ = sys.argv[1:]
    how, _, ahead = words.partition("-")
    device = Cpu(n_threads=config.n_threads)
    device.runs_ahead = bool(ahead)
    return Chosen(cast(Cpu, Faulty(device, Fault(how, int(step), int(token)))))


if __name__ == "__main__":
    batch = [int(word) for word in sys.argv[4:-2]]
    main(int(sys.argv[-1]), Config(Path(), n_threads=1, n_batch=batch[0] if batch else 512), open_faulty)
