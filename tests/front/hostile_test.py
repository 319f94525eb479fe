"""Templates and texts that want all of the machine: they end with the process that works on them, and hurt nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from luced.front import session, textpool, textworker
from tests.front.harness import Client, House, running
from tests.tinygguf import tiny_chat_model

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
NESTED = 10_000
PATIENT = {"file": 60, "template": 60, "text": 60}
QUESTION = [{"role": "user", "content": "say:hello"}]


def hostile(house: House, template: str) -> str:
    """The name of a model with this chat template."""
    tiny_chat_model(house.folder / "hostile.gguf", template=template)
    return "hostile"


async def answers(client: Client) -> None:
    result = await client.call("chat", messages=QUESTION, max_tokens=5)
    assert result["choices"][0]["text"] == "hello"


async def test_others_do_not_wait_for_an_endless_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworker, "CPU_S", PATIENT)
    async with running(tmp_path) as house:
        bad, good = await house.connect(), await house.connect()
        request = await bad.send("chat", model=hostile(house, LOOP), messages=QUESTION)
        await house_is_busy(house)
        await answers(good)
        assert await bad.call("cancel", id=request) == {"cancelled": True}


async def test_an_endless_template_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworker, "CPU_S", {**PATIENT, "template": 1})
    async with running(tmp_path) as house:
        client = await house.connect()
        error = await client.refused("chat", model=hostile(house, LOOP), messages=QUESTION)
        assert error["name"] == "bad_template"
        assert error["message"] == "the chat template of hostile needed more than 1 s of CPU time, and was ended"
        assert "use another file of this model" in error["remedy"]
        await answers(client)
        assert await client.call("complete", model="hostile", prompt="say:a", max_tokens=1)  # needs no template


async def house_is_busy(house: House) -> None:
    """Until a job is being done."""
    while house.daemon.texts.pool._all.value == textpool.N_WORKERS:
        await trio.sleep(0.001)


@pytest.mark.parametrize(
    ("template", "code", "words"),
    [
        (
            "{% set n = namespace(s='hello') %}{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}",
            "bad_template",
            "needed more than 300 MiB of memory",
        ),
        ("{{ messages[0].content * 10000000 }}", "bad_template", "makes 90000000 characters of this"),
        ("{{ 'x' * 10 ** 12 }}", "bad_template", "needed more than 300 MiB of memory"),
        (
            "{{ " + "(" * NESTED + "1" + ")" * NESTED + " }}",
            "bad_model_file",
            "template is not valid: maximum recursion",
        ),
        ("{% if 1 %}" * NESTED + "{% endif %}" * NESTED, "bad_model_file", "template is not valid"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "bad_template", "maximum recursion"),
        ("{{ raise_exception('no' * 1000) }}", "bad_template", "nono"),
        ("{{ ''.__class__.__mro__ }}", "bad_template", "unsafe"),
    ],
)
async def test_a_template_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, code: str, words: str
) -> None:
    monkeypatch.setattr(textworker, "DATA_BYTES", 300 << 20)
    async with running(tmp_path) as house:
        client = await house.connect()
        error = await client.refused("template", model=hostile(house, template), messages=QUESTION)
        assert error["name"] == code, error
        assert words in error["message"]
        assert len(error["message"]) < 1200
        assert error["remedy"]
        await answers(client)


async def test_a_text_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworker, "CPU_S", {**PATIENT, "text": 1})
    async with running(tmp_path) as house:
        client = await house.connect()
        error = await client.refused("tokenize", text="1" * (8 << 20))
        assert error["name"] == "bad_parameter"
        assert error["message"] == "to make tokens of this text needed more than 1 s of CPU time"
        assert error["remedy"] == "send less text at once"
        error = await client.refused("chat", messages=[{"role": "user", "content": "1" * (8 << 20)}])
        assert error["name"] == "bad_parameter"  # not the template's fault
        await answers(client)


async def test_a_prompt_of_one_megabyte_is_read(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        text = "the world is one engine\n" * (1 << 20 >> 4)
        tokens = (await client.call("tokenize", text=text))["tokens"]
        assert (await client.call("detokenize", tokens=tokens))["text"] == text
        error = await client.refused("complete", prompt=text)
        assert (error["name"], error["data"]["n_prompt"]) == ("context_too_long", len(tokens))


async def test_a_killed_worker_is_replaced_unseen(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        client = await house.connect()
        await answers(client)
        (idle,) = house.daemon.texts.pool._idle
        os.kill(idle.pid, signal.SIGKILL)
        await answers(client)
        (other,) = house.daemon.texts.pool._idle
        assert other.pid != idle.pid
        os.kill(other.pid, signal.SIGSTOP)  # no machine is so fast that it gets this job done
        request = await client.send("tokenize", text="1" * (1 << 20))
        await house_is_busy(house)
        os.kill(other.pid, signal.SIGKILL)
        error, result = await client.response(request)
        assert error is None
        assert result is not None
        assert len(result["tokens"]) == 1 << 20


async def test_a_worker_that_is_always_killed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(self: textworker.TextWorker, job: str, params: dict[str, Any]) -> dict[str, Any]:
        raise textworker.WorkerDiedError(-signal.SIGKILL, "text")

    async with running(tmp_path) as house:
        client = await house.connect()
        with monkeypatch.context() as patch:
            patch.setattr(textworker.TextWorker, "ask", ask)
            error = await client.refused("tokenize", text="a")
            assert (error["name"], error["message"]) == (
                "internal", "the process that works on texts was killed by SIGKILL"
            )  # fmt: skip
        await answers(client)


async def test_who_cancels_frees_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworker, "CPU_S", PATIENT)
    async with running(tmp_path) as house:
        client = await house.connect()
        request = await client.send("template", model=hostile(house, LOOP), messages=QUESTION)
        await house_is_busy(house)
        assert await client.call("cancel", id=request) == {"cancelled": True}
        error, _ = await client.response(request)
        assert error is not None
        assert error["name"] == "cancelled"
        await answers(client)  # it has one turn at a time
        assert house.daemon.texts.pool._n_workers == 1


async def test_no_user_takes_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworker, "CPU_S", PATIENT)
    async with running(tmp_path) as house:
        model = hostile(house, LOOP)
        clients = [await house.connect() for _ in range(4)]
        requests = [await client.send("template", model=model, messages=QUESTION) for client in clients]
        pool = house.daemon.texts.pool
        while pool._of_user[os.geteuid()].value or pool._n_workers < textpool.N_OF_USER:
            await trio.sleep(0.001)
        await trio.sleep(4 * textpool.PATIENCE_S)  # in which others would have been started
        assert pool._n_workers == textpool.N_OF_USER
        for client, request in zip(clients, requests, strict=True):
            await client.call("cancel", id=request)
            assert (await client.response(request))[0] is not None


async def test_what_a_user_has_sent_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_BYTES_OF_USER", 400_000)
    monkeypatch.setattr(textworker, "CPU_S", PATIENT)
    async with running(tmp_path) as house:
        one, two = await house.connect(), await house.connect()
        long = [{"role": "user", "content": "1" * 150_000}]
        model = hostile(house, LOOP)
        requests = [await one.send("template", model=model, messages=long) for _ in range(2)]
        while house.daemon.held_bytes[os.geteuid()] < 300_000:
            await trio.sleep(0.001)
        error = await two.refused("template", messages=long)
        assert error["name"] == "busy"
        assert error["data"].items() >= {"limit": "bytes_of_user", "value": 400_000}.items()
        await answers(two)  # what is small is not refused
        with suppress(trio.BrokenResourceError):  # it may hear of it before it has sent all
            await two.stream.send_all(b"\x94\0\7\xdb\0\x80\0\0" + b"x" * 600_000)  # a method of 8 MB, as it seems
        broken, _ = await two.response(0)
        assert broken is not None
        assert (broken["name"], broken["data"]["limit"]) == ("too_large", "bytes_of_user")
        for request in requests:
            await one.call("cancel", id=request)
            await one.response(request)
        assert await one.call("tokenize", text="1" * 150_000)
        assert await two.closed()
        assert not +house.daemon.held_bytes


@pytest.mark.parametrize("deep", [b"\x91" * NESTED, b"\x94\0\1\xa4chat\x91" + b"\x81\xa1a" * NESTED])
async def test_deep_nesting_in_a_frame(tmp_path: Path, deep: bytes) -> None:
    async with running(tmp_path) as house:
        client, other = await house.connect(), await house.connect()
        await client.stream.send_all(deep)
        error, _ = await client.response(0)
        assert error is not None
        assert (error["name"], error["data"]) == ("too_large", {"limit": "nesting", "value": 64})
        assert error["message"] == "a frame has more than 64 levels of nesting"
        assert await client.closed()
        await answers(other)


def test_the_front_has_no_part_in_it() -> None:
    """Neither library is even there."""
    code = "import sys, luced.front.daemon; print({'jinja2', 'tokenizers', 'numpy'} & sys.modules.keys())"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"


@pytest.mark.parametrize(
    ("params", "name", "words"),
    [
        ({"messages": QUESTION * 4097}, "bad_parameter", "at most 4096 items, not 4097"),
        ({"messages": QUESTION, "model": "x" * 1025}, "bad_parameter", "at most 1024 characters, not 1025"),
        ({"messages": QUESTION, "stop": ["ab", "x" * 1025]}, "bad_parameter", "has 1025 characters, at most 1024"),
        ({"messages": QUESTION, "x" * 100_000: 1}, "unknown_parameter", "x" * 60 + "'"),
        ({"messages": QUESTION, "keep_alive": "1h" * 100_000}, "bad_parameter", "must be duration, not '1h1h"),
        ({"messages": QUESTION, "priority": "x" * 100_000}, "bad_parameter", "must be one of interactive"),
        ({"messages": QUESTION, "logit_bias": {str(i): 1.0 for i in range(1025)}}, "bad_parameter", "at most 1024"),
    ],
)
async def test_what_is_too_long_is_named_in_short(
    tmp_path: Path, params: dict[str, Any], name: str, words: str
) -> None:
    async with running(tmp_path) as house:
        error = await (await house.connect()).refused("chat", **params)
        assert error["name"] == name
        assert words in error["message"]
        assert len(error["message"]) < 200
