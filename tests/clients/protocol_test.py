"""docs/protocol.md is current, and a client can be written from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from luce import wire
from luce.errors import CODES
from luce.messages import METHODS, NOTIFICATIONS, SAMPLING
from luce.structs import TYPES
from tests.clients.fake import FakeDaemon

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "protocol.md"
VECTORS = json.loads((ROOT / "tests" / "vectors" / "wire.json").read_text())


def test_it_is_current() -> None:
    command = [sys.executable, "clients/tools/gen_protocol.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_everything_is_in_it() -> None:
    text = DOCUMENT.read_text()
    for name in [*(m.name for m in METHODS), *(n.name for n in NOTIFICATIONS), *(t.name for t in TYPES)]:
        assert f"\n### {name}\n" in text
    for field in [f for m in METHODS for f in m.params + m.result] + list(SAMPLING):
        assert f"| `{field.name}` |" in text
    for code in CODES:
        assert f"| {code.number} | {code.name} |" in text


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_vectors(vector: dict[str, Any]) -> None:
    assert re.sub(r"\s", "", vector["hex"]) in re.sub(r"\s| {2,}.*", "", hex_of(DOCUMENT.read_text()))
    connection = wire.Connection()
    connection.feed(bytes.fromhex(vector["hex"]))
    match connection.next_event(), vector["message"]:
        case wire.Request(request_id, method, params), message:
            assert message == [0, request_id, method, [params]]
        case wire.Response(request_id, error, result), message:
            assert message == [1, request_id, error, result]
        case wire.Notification(method, params), message:
            assert message == [2, method, [params]]


def hex_of(document: str) -> str:
    """The bytes of all annotated examples."""
    return "".join(re.findall(r"^ *((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", document, re.MULTILINE))


def test_the_client_in_it(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)

    def run(question: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, str(daemon.path), question]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    with FakeDaemon(tmp_path / "luced.sock") as daemon:
        assert run("why is it so?").stdout == "why is it so?\n(2 tokens, seed 17)\n"
        assert "a fault called busy\ntry again later\n" in run("error busy").stderr
