"""What `luced bench` counts: steps, the floor, energy. How fast anything is, is no matter here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luced.device import copying, energy
from luced.device.choose import open_device
from luced.device.cpu import Cpu
from luced.engine import floor, loader, offline, speed
from luced.engine.runner import Runner
from luced.errors import RequestError
from luced.gguf.reader import open_gguf
from tests.device.fake_cuda import FakeRuntime, install
from tests.models.cases import GOLDENS
from tests.tinygguf import tiny_chat_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(autouse=True)
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CPU_BYTES", 1 << 20)
    monkeypatch.setattr(copying, "GPU_BYTES", 1 << 20)


@pytest.fixture
def runner(model: Path) -> Iterator[Runner]:
    with offline.resident(model, n_threads=1, kv_type="f32/bf16") as runner:
        yield runner


def measure(path: Path, *tests: speed.Work) -> list[Any]:
    device = Cpu(n_threads=1)
    try:
        return list(speed.measure(path, device, list(tests), 2))
    finally:
        device.close()


def test_every_row_writes_in_every_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[tuple[int, int], ...]] = []
    launch = Runner.launch

    def watched(self: Runner, plan: Any) -> None:
        shapes.append(tuple((chunk.position, len(chunk.tokens)) for chunk in plan.chunks))
        launch(self, plan)

    monkeypatch.setattr(Runner, "launch", watched)
    conditions, found = measure(model, speed.Work("tg", 5, 70, 3))
    assert (found.test, found.n_tokens, found.n_rows, found.depth, found.n_runs) == ("tg5 x3 @70", 5, 3, 70, 2)
    written = [tuple((70 + i, 1) for _ in range(3)) for i in range(6)]
    assert [shapes[i - 6 : i] for i in range(6, len(shapes) + 1)].count(written) == 3  # one run does not count
    assert shapes[-6:] == written
    assert conditions.copy_bytes_s > 0
    assert conditions.no_energy == "cpu has no counter"
    assert found.floor_tok_s > 0
    assert found.to_json()["share_of_floor"] == found.tok_s / found.floor_tok_s


def test_reading_goes_on_at_the_depth(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, int, int]] = []
    step = Runner.step

    def watched(self: Runner, plan: Any) -> Any:
        (chunk,) = plan.chunks
        steps.append((chunk.position, len(chunk.tokens), chunk.n_out))
        return step(self, plan)

    monkeypatch.setattr(Runner, "step", watched)
    _, found = measure(model, speed.Work("pp", 600, 530))
    assert steps == [(0, 512, 0), (512, 18, 0), *[(530, 512, 0), (1042, 88, 1)] * 3]
    assert (found.test, found.floor_tok_s, found.j_per_token) == ("pp600 @530", None, None)


def test_what_does_not_fit(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="128 tokens after 2000 do not fit in a context of 2048") as error:
        measure(model, speed.Work("tg", 128, 2000))
    assert (error.value.name, error.value.remedy) == ("context_too_long", "choose a smaller --depth, -p or -n")
    with pytest.raises(RequestError, match="at most 64 sequences, not 65"):
        measure(model, speed.Work("tg", 1, 0, 65))
    monkeypatch.setattr(loader, "load", lambda path, device, load=loader.load: load(path, device, SMALL))
    with pytest.raises(RequestError, match="3 sequences do not fit side by side in a cache of"):
        measure(model, speed.Work("tg", 128, 400, 3))
    measure(model, speed.Work("tg", 8, 100, 3))


SMALL = loader.Wants(n_ctx=1024, cache_bytes=300 << 10)  # a cell has 256 bytes


def test_the_floor(runner: Runner, model: Path) -> None:
    file = open_gguf(model)
    tensors, m = file.tensors, file.metadata
    unread = "token_embd.weight" if "output.weight" in tensors else ""
    n_weights = sum(t.n_bytes for name, t in tensors.items() if name != unread)
    n_kv, head, n_layer = (
        m.count("llama.attention.head_count_kv"),
        m.count("llama.embedding_length") // m.count("llama.attention.head_count"),
        m.count("llama.block_count"),
    )
    file.close()
    cell = n_layer * n_kv * head * (4 + 2)
    assert floor.step_bytes(runner, 1, 0) == n_weights + cell
    assert floor.step_bytes(runner, 5, 99) == n_weights + 5 * 100 * cell


@pytest.mark.parametrize("name", ["gemma3", "qwen3moe", "qwen35"])
def test_the_floor_of_windows_experts_and_states(name: str) -> None:
    with offline.resident(GOLDENS / f"{name}.gguf", n_threads=1) as runner:
        spec = runner.spec
        first, second = (floor.step_bytes(runner, n, 0) for n in (1, 2))
        deep = floor.step_bytes(runner, 1, 199)
        f16 = {g.name: 2 * len(g.layers) * g.n_head_kv * (g.head_dim + g.head_dim_v) for g in spec.groups}
        assert second - first == sum(f16.values()) + (2 * spec.recurrent.state_bytes if spec.recurrent else 0)
        assert deep - first == sum(f16[g.name] * (min(200, g.window or 200) - 1) for g in spec.groups)
        if spec.routing:
            tensors = runner.weights.file.tensors
            experts = [t for t in tensors.values() if len(t.dims) == 3]
            unread = "token_embd.weight" if "output.weight" in tensors else ""
            everything = sum(t.n_bytes for name, t in tensors.items() if name != unread)
            idle = sum(t.n_bytes * (t.dims[2] - spec.routing.n_used) // t.dims[2] for t in experts)
            assert experts
            assert first == everything - idle + sum(f16.values())


def test_energy_is_the_difference_of_two_lengths() -> None:
    joules, runs = 1000.0, 0

    def run() -> None:
        nonlocal joules, runs
        joules, runs = joules + 2.5, runs + 1

    def counter() -> float:
        nonlocal joules
        joules += 40  # what looking costs, or what the counter is late
        return joules

    assert speed.joules_per_run(run, 0.3, counter) == 2.5
    assert runs == 16  # 4 last a second


class FakeNvml:
    """One GPU that uses 3 J between two looks."""

    class NvmlError(Exception):
        pass

    def __init__(self) -> None:
        self.millijoules = 5000
        self.error: Exception | None = None

    def init_v2(self) -> None:
        if self.error:
            raise self.error

    def device_get_handle_by_pci_bus_id_v2(self, bus_id: str) -> int:
        assert bus_id == "0000:1b:00.0"
        return 7

    def device_get_total_energy_consumption(self, handle: int) -> int:
        assert handle == 7
        self.millijoules += 3000
        return self.millijoules


def test_the_counter_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path) -> None:
    runtime, nvml = FakeRuntime(), FakeNvml()
    install(monkeypatch, runtime, tmp_path)
    runtime.bus_ids = ["0000:01:00.0", "0000:1b:00.0"]
    monkeypatch.setattr(energy, "nvml", lambda: nvml)
    monkeypatch.setattr(speed, "COUNTED_S", 1e-6)
    device = open_device("cuda:1")
    try:
        joules = energy.counter(device)
        assert joules() - joules() == -3
        conditions, found = speed.measure(model, device, [speed.Work("tg", 4, 20, 3)], 2)
        assert isinstance(conditions, speed.Conditions)
        assert isinstance(found, speed.Measure)
        assert (conditions.no_energy, found.j_per_token) == ("", 0)  # the same for each length
        nvml.error = FakeNvml.NvmlError("Not Supported")
        with pytest.raises(energy.NoCounterError, match="NVML: Not Supported"):
            energy.counter(device)
        nvml.error = RuntimeError("no libnvidia-ml")
        with pytest.raises(energy.NoCounterError, match="no libnvidia-ml"):
            energy.counter(device)
        monkeypatch.undo()
        monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
        with pytest.raises(energy.NoCounterError, match="cuda-python has no NVML"):
            energy.counter(device)
    finally:
        device.close()


def test_the_cpu_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Cpu(n_threads=2)
    kept = [device.reserve(1 << 20) for _ in range(2)]
    buffers = iter(kept)
    monkeypatch.setattr(device, "reserve", lambda n: next(buffers))
    assert 0 < copying.copy_rate(device) < math.inf
    to, source = kept
    assert np.array_equal(to.bytes, source.bytes)
    assert to.bytes.all()
    device.close()
