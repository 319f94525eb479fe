"""Which device is taken, and what is said of the one that is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from luced.device import cuda, cuda_runtime, nvidia
from luced.device.choose import choose, open_device
from luced.device.cuda_runtime import Runtime
from luced.errors import EngineError, ModelError
from tests.device.fake_cuda import FakeRuntime, install


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuntime:
    runtime = FakeRuntime()
    install(monkeypatch, runtime, tmp_path)
    return runtime


def refused(name: str = "cuda") -> ModelError:
    with pytest.raises(ModelError) as error:
        open_device(name)
    assert error.value.name == "no_device"
    return error.value


def test_auto_takes_the_gpu(runtime: FakeRuntime) -> None:
    device, passed_over = choose("auto")
    assert (device.name, passed_over) == ("cuda:0", ())
    device.close()
    device, _ = choose("cuda:1")
    assert device.name == "cuda:1"
    device.close()


def test_auto_says_why_it_takes_the_cpu(runtime: FakeRuntime) -> None:
    runtime.errors["cudaGetDeviceCount"] = nvidia.UNAVAILABLE
    device, passed_over = choose("auto")
    device.close()
    assert device.name == "cpu"
    assert passed_over == (f"cuda: {refused().message} ({refused().remedy})",)
    assert "another process" in passed_over[0]


def test_the_cpu_is_the_cpu(runtime: FakeRuntime) -> None:
    device, passed_over = choose("cpu")
    device.close()
    assert (device.name, passed_over) == ("cpu", ())


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "cuda:x", "cuda:N", ""])
def test_no_such_name(name: str) -> None:
    assert "there is no device" in refused(name).message


def test_no_gpu_and_no_driver(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    monkeypatch.setattr(nvidia, "ROOT", bare)
    assert refused().message == "there is no NVIDIA GPU and no driver for one"
    assert not nvidia.is_here()
    card = bare / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x040300\n")  # sound
    assert not nvidia.is_here()
    (card / "class").write_text("0x030000\n")
    assert nvidia.is_here()
    assert "no driver for it" in refused().message
    assert "modprobe nvidia" in refused().remedy


def test_no_kernels_no_library(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda, "CUDA_LIBRARY", missing := tmp_path / "libluce_cuda.so")
    monkeypatch.setattr("luced.device.library.CUDA_LIBRARY", missing)
    assert "is not built" in refused().message
    assert "make cuda" in refused().remedy


def test_no_cuda_python(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(ModelError, match="cuda-python is not there") as error:
        cuda_runtime.bindings()
    assert "luced[cuda]" in error.value.remedy


@pytest.mark.parametrize(
    ("gone", "says", "remedy"),
    [
        ("nvidiactl", "there is no .*nvidiactl", "container"),
        ("nvidia0", "there is no .*nvidia0", "container"),
        ("nvidia-uvm", "nvidia-uvm is missing", "modprobe nvidia-uvm"),
    ],
)
def test_a_node_is_missing(runtime: FakeRuntime, tmp_path: Path, gone: str, says: str, remedy: str) -> None:
    runtime.errors["cudaGetDeviceCount"] = 999
    (tmp_path / "dev" / gone).unlink()
    with pytest.raises(ModelError, match=says) as error:
        open_device("cuda")
    assert remedy in error.value.remedy


def test_no_permission(runtime: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.errors["cudaGetDeviceCount"] = nvidia.NO_DEVICE
    node = tmp_path / "dev/nvidia0"
    monkeypatch.setattr(os, "access", lambda path, mode: path != node)  # root may open anything
    node.chmod(0o600)
    assert refused().message == f"no permission on {node}"
    assert refused().remedy == f"chmod 0666 {node}"
    node.chmod(0o660)
    monkeypatch.setattr(nvidia, "_group", lambda path: "video")
    assert refused().remedy == "usermod --append --groups video USER, and log in again"


@pytest.mark.parametrize(
    ("driver", "says"),
    [(12020, "it is for CUDA 12.2, not 13.0"), (0, "libcuda.so.1, a part of the driver, is missing")],
)
def test_the_driver_is_too_old(runtime: FakeRuntime, driver: int, says: str) -> None:
    runtime.errors["cudaGetDeviceCount"] = nvidia.OLD_DRIVER
    runtime.driver_version = driver
    assert says in refused().message
    assert "install" in refused().remedy


@pytest.mark.parametrize("code", nvidia.CAUSES)
@pytest.mark.parametrize("name", ["cudaGetDeviceCount", "cudaSetDevice", "cudaStreamCreateWithFlags"])
def test_every_code_with_a_cause(runtime: FakeRuntime, name: str, code: int) -> None:
    runtime.errors[name] = code
    assert (refused().message, refused().remedy) == nvidia.CAUSES[code]


def test_any_other_code(runtime: FakeRuntime) -> None:
    runtime.errors["cudaSetDevice"] = 999
    assert refused().message == "the driver fails: unknown (999)"
    assert "modprobe" in refused().remedy


def test_no_such_index(runtime: FakeRuntime) -> None:
    assert refused("cuda:2").message == "there is no CUDA device 2, the driver has 2"
    assert "cuda:1" in refused("cuda:2").remedy


def test_no_memory_says_how_much(runtime: FakeRuntime) -> None:
    device = Runtime(0)
    runtime.errors["cudaMalloc"] = nvidia.NO_MEMORY
    runtime.free_bytes = 3 << 20
    with pytest.raises(ModelError, match=r"8\.0 MiB are asked for, 3\.0 .* are free: 5\.0 MiB are missing") as error:
        device.allocate(8 << 20)
    assert (error.value.name, error.value.data["lack_bytes"]) == ("no_memory", 5 << 20)
    runtime.errors = {"cudaHostAlloc": nvidia.NO_MEMORY}
    with pytest.raises(ModelError, match="pinned"):
        device.allocate_host(8 << 20)
    assert device.allocate(8 << 20)  # it goes on


@pytest.mark.parametrize("code", [46, 700, 719, 999])
@pytest.mark.parametrize("name", ["cudaMalloc", "cudaMemcpyAsync", "cudaStreamSynchronize"])
def test_what_stays_is_the_end_of_the_engine(runtime: FakeRuntime, name: str, code: int) -> None:
    device = Runtime(0)
    runtime.errors[name] = code
    with pytest.raises(EngineError, match=rf"{name}: .* \({code}\)"):
        device.upload(device.allocate(8), b"12345678")
    runtime.errors.clear()
    with pytest.raises(EngineError, match=rf"cudaMemGetInfo: .* \({code}\)"):
        device.free_bytes()
