"""The engine on a CUDA device, as far as that is the host's doing: the kernels are those of the CPU (fake_cuda.py)."""

from __future__ import annotations

from ctypes import string_at
from pathlib import Path

import numpy as np
import pytest

from luced import link
from luced.device.choose import open_device
from luced.device.values import Storage
from luced.engine import loader, offline
from luced.engine.ledger import plan
from luced.engine.worker import Worker
from luced.errors import EngineError, ModelError
from tests.device.fake_cuda import FakeRuntime, install
from tests.models.parity_test import golden
from tests.tinygguf import tiny_chat_model

ILLEGAL_ADDRESS = 700


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuntime:
    runtime = FakeRuntime()
    install(monkeypatch, runtime, tmp_path / "root")
    return runtime


@pytest.mark.parametrize("name", ["llama_q8_0", "llama_f16", "gemma3", "qwen35"])
def test_the_logits_are_those_of_the_cpu(runtime: FakeRuntime, name: str) -> None:
    """Weights through pinned memory, inputs uploaded, steps captured and replayed: the same bits."""
    path, ids, _ = golden(name)
    expected = offline.logits(path, ids)
    for n_batch in (1, 5, 64):
        assert np.array_equal(offline.logits(path, ids, device="cuda", n_batch=n_batch), expected), n_batch
    assert runtime.n_launches > len(ids) // 2


def test_what_does_not_fit_is_refused_before_anything_is_loaded(runtime: FakeRuntime, tmp_path: Path) -> None:
    tiny_chat_model(path := tmp_path / "tiny.gguf")
    ledger = plan(path, device="cuda", n_ctx=64, n_batch=16)
    assert (ledger.device, ledger.free_bytes) == ("cuda:0", runtime.free_bytes)
    runtime.free_bytes = ledger.n_bytes - (1 << 20)
    free = runtime.free_bytes
    device = open_device("cuda")
    with pytest.raises(ModelError, match="MiB") as error:
        next(loader.load(path, device, loader.Wants(n_ctx=64, n_batch=16)))
    assert error.value.name == "no_memory"
    assert error.value.data["lack_bytes"] > 0
    assert runtime.free_bytes == free
    device.close()


def test_what_is_not_packed_is_copied_in_slices(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have steps between them, and progress is told."""
    monkeypatch.setattr("luced.device.cuda.STAGING_BYTES", 1024)
    device = open_device("cuda")
    data = bytes(range(256)) * 10
    weight = Storage("w", "weight", len(data), memoryview(data))
    assert list(device.bind(weight)) == [1024, 1024, 512]
    runtime.cudaStreamSynchronize(1)
    assert string_at(weight.pointer, len(data)) == data
    device.close()


class Port:
    """Asks for a model, and then for nothing."""

    def __init__(self, load: link.Load) -> None:
        self.asked: list[link.Message] = [load]
        self.said: list[link.Message] = []

    def receive(self, wait_s: float | None) -> list[link.Message] | None:
        asked, self.asked = self.asked, []
        return asked if not any(isinstance(m, link.Loaded | link.Refused) for m in self.said) else None

    def send(self, messages: list[link.Message]) -> None:
        self.said += messages


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaMemcpyAsync", "cudaStreamSynchronize"])
def test_a_device_that_is_lost_at_a_load_ends_the_engine(runtime: FakeRuntime, tmp_path: Path, name: str) -> None:
    """It would refuse every load from then on."""
    tiny_chat_model(path := tmp_path / "tiny.gguf")
    device = open_device("cuda")
    port = Port(link.Load("tiny", str(path), 64))
    worker = Worker(port, lambda load: loader.load(Path(load.path), device, loader.Wants(n_ctx=load.n_ctx)))  # type: ignore[arg-type]
    runtime.errors[name] = ILLEGAL_ADDRESS
    with pytest.raises(EngineError, match=r"\(700\)"):
        worker.run()
