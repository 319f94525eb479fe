"""luced doctor: what it says of a machine in order, and of one that is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luced.cli import doctor
from luced.device import nvidia
from tests.clients.fake import FakeDaemon
from tests.device.fake_cuda import FakeRuntime, install
from tests.tinygguf import tiny_chat_model


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has one model."""
    models = tmp_path / "data/luce/models"
    models.mkdir(parents=True)
    tiny_chat_model(models / "tiny.gguf")
    ours = {"LUCE_SOCKET": str(tmp_path / "luced.sock"), "XDG_DATA_HOME": str(tmp_path / "data")}
    ours |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), "LUCE_DEFAULT_MODEL": "tiny"}
    return {**os.environ, **ours}


def run(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "luced", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def checks(env: dict[str, str], status: int = 0) -> dict[str, Any]:
    done = run(env, "--json")
    assert (done.returncode, done.stderr) == (status, "")
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    rank = ["ok", "warning", "failure"]
    assert found["status"] == max((check["status"] for check in found["checks"]), key=rank.index)
    return {check["id"]: check for check in found["checks"]}


def test_in_order(home: dict[str, str]) -> None:
    with FakeDaemon(Path(home["LUCE_SOCKET"])):
        found = checks(home)
    assert list(found) == list(doctor.CHECKS)
    assert {c["status"] for n, c in found.items() if n not in ("systemd", "disk", "memory", "files")} == {"ok"}
    assert "the default is tiny" in found["models"]["summary"]


def test_words(home: dict[str, str]) -> None:
    lines = run(home).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[1] == "socket")
    assert lines[at].startswith("warning")
    assert lines[at + 1].strip().startswith("-> start it")


def test_a_stale_socket(home: dict[str, str]) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(home["LUCE_SOCKET"])
    found = checks(home)["socket"]
    assert found["status"] == "warning"
    assert "was left by a daemon that is gone" in found["summary"]


def test_a_folder_that_others_may_write_to(home: dict[str, str]) -> None:
    folder = Path(home["HOME"]) / "open"
    folder.mkdir()
    folder.chmod(0o777)
    found = checks(home | {"LUCE_SOCKET": str(folder / "luced.sock")}, status=78)["socket"]
    assert found["status"] == "failure"
    assert "others may write to" in found["summary"]


def test_models_that_are_not_in_order(home: dict[str, str]) -> None:
    models = Path(home["XDG_DATA_HOME"]) / "luce/models"
    (models / "cut.gguf").write_bytes((models / "tiny.gguf").read_bytes()[:-9])
    found = checks(home)["models"]
    assert (found["status"], "cut" in found["summary"]) == ("warning", True)
    assert checks(home | {"LUCE_DEFAULT_MODEL": "nosuch"})["models"]["status"] == "warning"


def test_a_log_that_others_may_open(home: dict[str, str]) -> None:
    log = Path(home["XDG_DATA_HOME"]) / "luce/logs.db"
    log.write_bytes(b"no database" * 100)
    found = checks(home)["log"]
    assert (found["status"], "cannot be read" in found["summary"]) == ("warning", True)


def test_settings_that_are_wrong_fail(home: dict[str, str]) -> None:
    config = Path(home["XDG_CONFIG_HOME"]) / "luce/luced.toml"
    config.parent.mkdir(parents=True)
    config.write_text("n_thread = 2\n")
    found = checks(home, status=78)["settings"]
    assert found["status"] == "failure"
    assert "did you mean n_threads?" in found["summary"]


def test_no_kernels_fail(home: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from luced.device import cpu, library

    def opened(isa: Any, n_threads: int) -> library.Context:
        return library.Context(isa, n_threads, path=tmp_path / "none.so")

    monkeypatch.setattr(cpu, "Context", opened)
    finding = doctor._run(doctor.CHECKS["kernels"])
    assert (finding.status, "none.so" in finding.summary, bool(finding.remedy)) == ("failure", True, True)


def test_a_check_that_breaks_hides_no_other() -> None:
    def broken() -> doctor.Finding:
        raise RuntimeError("why")

    assert doctor._run(broken).summary == "cannot be checked: RuntimeError: why"


def test_few_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 100_000))
    assert doctor.CHECKS["files"]() == doctor.Finding("warning", "256 files may be open at once", "ulimit -n 4096")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuntime:
    """A machine with two GPUs, and settings that leave the choice of the device to luced."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("LUCE_DEVICE", raising=False)
    runtime = FakeRuntime()
    install(monkeypatch, runtime, tmp_path / "machine")
    return runtime


def test_a_gpu_in_order(runtime: FakeRuntime) -> None:
    finding = doctor.CHECKS["device"]()
    assert finding.status == "ok"
    assert finding.summary.startswith("auto: cuda:0, ")


def remove(node: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda root, patch: (root / node).unlink()


def close(node: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """Root may open anything, so access() is told to say no."""
    return lambda root, patch: patch.setattr("luced.device.nvidia.os.access", lambda path, mode: path != root / node)


def leave(root: Path, patch: pytest.MonkeyPatch) -> None:
    pass


def put_in_a_card_alone(root: Path, patch: pytest.MonkeyPatch) -> None:
    card = root / "bare/sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    patch.setattr(nvidia, "ROOT", root / "bare")


CAUSES = {
    "no driver": (0, put_in_a_card_alone, "there is an NVIDIA GPU but no driver for it", "modprobe nvidia"),
    "old driver": (
        nvidia.OLD_DRIVER,
        leave,
        "the driver is older than the library: it is for CUDA 12.4, not 13.0",
        "install a newer driver",
    ),
    "no permission": (nvidia.NO_DEVICE, close("dev/nvidia0"), "no permission on ", "chmod 0666 "),
    "no nvidia-uvm": (999, remove("dev/nvidia-uvm"), "nvidia-uvm is missing", "modprobe nvidia-uvm"),
    "no memory": (nvidia.NO_MEMORY, leave, "the GPU has no memory left", "nvidia-smi lists it"),
}


@pytest.mark.parametrize("asked", ["auto", "cuda"])
@pytest.mark.parametrize(("code", "spoil", "says", "remedy"), CAUSES.values(), ids=CAUSES)
def test_every_cause_for_which_a_gpu_cannot_be_used(
    runtime: FakeRuntime,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: int,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    says: str,
    remedy: str,
    asked: str,
) -> None:
    monkeypatch.setenv("LUCE_DEVICE", asked)
    runtime.errors["cudaGetDeviceCount"] = code
    runtime.driver_version = 12040
    spoil(tmp_path / "machine", monkeypatch)
    finding = doctor._run(doctor.CHECKS["device"])
    assert finding.status == ("warning" if asked == "auto" else "failure")
    assert says in finding.summary
    assert remedy in (finding.summary if asked == "auto" else finding.remedy)
    assert finding.remedy


def test_memory_of_a_gpu_that_is_full(runtime: FakeRuntime) -> None:
    """It opens, but not the default model would fit: by how much is told."""
    runtime.free_bytes = 100 << 20
    finding = doctor.CHECKS["device"]()
    assert finding.status == "warning"
    assert finding.summary.endswith("0.1 GiB are free: 412 MiB less than a small model needs")
    assert "nvidia-smi" in finding.remedy
