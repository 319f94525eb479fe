"""The engine on a CUDA device (fake_cuda.py) that is lost at a launch: cuda_engine.py N FOLDER --link-fd FD.

N is the number of the launch. FOLDER holds what the machine shows of its driver; where it has a file `broken`, the
device cannot be opened.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from luced.config import Config
from luced.engine.worker import main
from tests.device.fake_cuda import FakeRuntime, install


class Losing(FakeRuntime):
    def __init__(self, n: int) -> None:
        super().__init__()
        self._n = n

    def _cudaGraphLaunch(self, graph: int, stream: int) -> tuple[Any, ...]:  # noqa: N802
        super()._cudaGraphLaunch(graph, stream)
        if self.n_launches == self._n:
            self.errors["cudaEventSynchronize"] = 700
        return ()


if __name__ == "__main__":
    n, folder = int(sys.argv[1]), Path(sys.argv[2])
    runtime = Losing(n)
    if (folder / "broken").exists():
        runtime.errors["cudaSetDevice"] = 999
    with pytest.MonkeyPatch.context() as patch:
        install(patch, runtime, folder)
        main(int(sys.argv[-1]), Config(Path(), n_threads=1, device="auto"))
