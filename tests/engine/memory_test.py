"""Memory goes back: all that a model had is free once it is unloaded, ten times over, and what was allocated is taken
even before it is touched."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from luced.device.cpu import Cpu
from luced.engine import loader
from luced.engine.offline import drain, prefill, sequence_of
from luced.engine.runner import Runner
from tests.tinygguf import tiny_chat_model

MIB = 1 << 20
N_CTX = 8192


def resident_bytes() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) << 10


def n_mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.fixture
def device() -> Iterator[Cpu]:
    device = Cpu(n_threads=1)
    yield device
    device.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=N_CTX)


def load(path: Path, device: Cpu) -> Runner:
    runner = drain(loader.load(path, device, loader.Wants(kv_type="f32")))
    prefill(runner, sequence_of(runner, [i % runner.n_vocab for i in range(4000)]), 0, 4000)
    return runner


def test_unloading_gives_everything_back(path: Path, device: Cpu) -> None:
    load(path, device).close()  # what Python and numpy keep for good
    gc.collect()  # and what other tests have left
    before = resident_bytes()
    for i in range(10):
        runner = load(path, device)
        used = resident_bytes() - before
        assert used > 3 * MIB
        assert n_mappings(path) > 0
        runner.close()
        del runner
        assert n_mappings(path) == 0, i
        assert resident_bytes() - before < used / 3, i


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_ledger_is_what_is_taken(path: Path, n_threads: int) -> None:
    device = Cpu(n_threads=n_threads)
    runner = load(path, device)
    owned = dict(runner.memory)
    assert owned["workspaces"] > 0
    del owned["weights_mapped"]
    assert sum(owned.values()) == sum(memory.n_bytes for memory in device._memories)
    runner.close()
    device.close()


def test_memory_that_nobody_has_touched_is_taken(path: Path, device: Cpu) -> None:
    before = device.free_bytes()
    memory = device.reserve(4 << 30)
    assert device.free_bytes() < before - (3 << 30)  # other processes may have taken or given some
    del memory
    assert device.free_bytes() > before - (1 << 30)
