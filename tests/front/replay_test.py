"""The vectors, replayed by a client in another language; then the same client talks to the daemon."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from luce.errors import BY_NAME
from tests.front.harness import running

TESTS = Path(__file__).parents[1]
VECTORS = TESTS / "vectors" / "wire.json"
CLIENT = TESTS / "clients" / "replay.js"
node = shutil.which("node") or ""

pytestmark = pytest.mark.skipif(not node, reason="Node is not installed")


def test_the_vectors() -> None:
    subprocess.run([node, CLIENT, VECTORS], check=True, timeout=60)


@pytest.mark.parametrize(("old", "new"), [("progress", "progresz"), ('"cached": 30', '"cached": 31')])
def test_a_vector_that_is_wrong_is_found(tmp_path: Path, old: str, new: str) -> None:
    wrong = tmp_path / "wire.json"
    text = VECTORS.read_text()
    assert old in text
    wrong.write_text(text.replace(old, new))
    done = subprocess.run([node, CLIENT, wrong], capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert b"AssertionError" in done.stderr


async def test_a_conversation(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        await (await house.connect()).call("complete", prompt="say:a", max_tokens=1)
        done = await trio.run_process(
            [node, str(CLIENT), str(VECTORS), str(house.daemon.listener.path)], capture_stdout=True
        )
    said: list[Any] = json.loads(done.stdout)
    responses = {message[1]: message[2:] for message in said if message[0] == 1}
    assert responses[1][1]["instance"] == house.daemon.instance
    assert responses[2][0]["name"] == "cancelled"
    assert responses[3] == [None, {"cancelled": True}]
    assert responses[4][0]["name"] == "cancelled"
    assert responses[5] == [None, {"cancelled": True}]
    assert responses[0][0]["code"] == BY_NAME["bad_frame"].number
    texts = [message[2][0]["text"] for message in said if message[:2] == [2, "text"]]
    assert "".join(texts) == "héllo"
