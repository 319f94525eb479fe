"""The log: one line for each thing, with the request's name, and never a prompt."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from luced.front import journal, methods, supervisor
from luced.front.call import Call
from luced.front.journal import entry
from tests.front.harness import running

SECRET = "xyzzyplugh"


def test_an_entry() -> None:
    assert entry("done", request="3/7", model="", age_s=0.25, n=0, what='a "b"', bug="x\ny", none=None) == (
        'done request=3/7 age_s=0.250 n=0 what="a \\"b\\"" bug="x\\ny"'
    )


def test_the_journal_gets_the_priority(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("luced.x", logging.ERROR, "", 0, "the end", (), None)
    assert journal._ForJournal().format(record) == "<3>luced.x: the end"


async def test_no_prompt_is_logged_and_every_request_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bug(call: Call) -> dict[str, object]:
        raise ValueError(call.params["text"])

    caplog.set_level(logging.DEBUG)
    monkeypatch.setitem(methods.HANDLERS, "tokenize", bug)
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.0,))
    async with running(tmp_path) as house:
        client = await house.connect(tenant=SECRET)
        await client.call("chat", messages=[{"role": "user", "content": f"say:{SECRET}"}], max_tokens=20)
        await client.refused("complete", prompt=f"{SECRET};die!")
        await client.refused("complete", prompt=f"{SECRET};fail")
        await client.refused("complete", prompt=f"say:{SECRET};wait", deadline_s=0.2)
        await client.refused("complete", prompt=f"say:{SECRET}", model=SECRET)
        await client.refused("complete", prompt=f"say:{SECRET}", max_tokens=10**9)
        await client.refused("complete", prompt="x", temperature=SECRET)
        await client.refused("tokenize", text=SECRET)
        await client.refused(SECRET)
        request = await client.send("complete", prompt=f"say:{SECRET};wait", stop=[SECRET + SECRET])
        await client.note(request, "progress")
        await client.call("cancel", id=request)
    assert SECRET not in caplog.text
    messages = [record.getMessage() for record in caplog.records if record.name == "luced.session"]
    assert not any("\n" in message for message in messages)
    for number, method, word in [(2, "chat ended", "generated=20"), (3, "complete ended", "error=engine_failed"),
                                 (4, "complete ended", "error=no_memory"), (5, "complete ended", "error=deadline"),
                                 (6, "complete ended", "error=unknown_model"), (9, "tokenize failed", "ValueError"),
                                 (request, "complete ended", "error=cancelled")]:  # fmt: skip
        assert any(m.startswith(f"{method} request=1/{number} ") and word in m for m in messages), (number, messages)
