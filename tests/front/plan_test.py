"""luced plan: what it says before a load is what the load takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from luced.engine import ledger, offline
from tests.tinygguf import tiny_chat_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


def plan(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "luced", "plan", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("kv_type", ["f16", "f32", "f32/bf16"])
def test_the_plan_is_what_a_load_takes(model: Path, kv_type: str) -> None:
    options: dict[str, Any] = {"n_ctx": 256, "kv_type": kv_type, "n_batch": 64, "n_threads": 1}
    planned = ledger.plan(model, **options)
    with offline.resident(model, **options) as runner:
        taken = dict(runner.memory)
        assert planned.n_ctx == runner.n_ctx == 256
    sizes = {owner.name: owner.n_bytes for owner in planned.owners}
    assert sizes.pop("kv full") + sizes.pop("counts") == taken.pop("kv")
    assert list(sizes.values()) == list(taken.values())
    assert planned.n_bytes == sum(runner.memory.values())


def test_json(model: Path) -> None:
    small = json.loads(plan(model, "--ctx", "128", "--json").stdout)
    large = json.loads(plan(model, "--json").stdout)
    assert (small["model"], small["n_ctx"], large["n_ctx"], large["fits"]) == ("tiny", 128, 2048, True)
    assert small["n_bytes"] == sum(owner["n_bytes"] for owner in small["owners"]) < large["n_bytes"]


def test_words(model: Path) -> None:
    done = plan("tiny", "--model-dir", model.parent)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["owner", "MiB", "why"]
    assert "A request may have 2048 tokens (what the model was trained for), kept as f16." in done.stdout
    assert "(as asked), kept as f32/bf16" in plan(model, "--ctx", "64", "--kv", "f32/bf16").stdout


def test_what_cannot_be(model: Path, tmp_path: Path) -> None:
    done = plan(model, "--ctx", "4096")
    assert (done.returncode, done.stdout) == (78, "")
    assert "trained for 2048 tokens" in done.stderr
    (tmp_path / "cut.gguf").write_bytes(model.read_bytes()[:-9])
    assert plan(tmp_path / "cut.gguf").returncode == 78
    assert plan("no-such-model").returncode == 65
