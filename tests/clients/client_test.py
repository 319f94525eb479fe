"""The blocking client against a fake daemon on a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import luce
from luce import Client, LuceError, Progress, Text
from luce.calls import Sampling
from luce.fields import Field
from luce.messages import SAMPLING
from luce.results import Cache, Choice, Engine, Limits, Loaded, Logprob, Model, Running, Socket, Timings, Usage
from luce.structs import TYPES
from tests.clients.fake import CACHE, TIMINGS, USAGE, FakeDaemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "luced.sock") as fake:
        yield fake


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[Client]:
    with Client(daemon.path, tenant="mine", timeout=60) as connected:
        yield connected


def test_hello(daemon: FakeDaemon, client: Client) -> None:
    assert (client.hello.tenant, client.hello.role, client.hello.level) == ("mine", "user", 1)
    assert client.hello.limits.nesting == 64
    assert daemon.requests[0].params["tenant"] == "mine"


def test_chat(daemon: FakeDaemon, client: Client) -> None:
    stream = client.chat("why is it ©?", system="Be short.", model="m", temperature=0, logit_bias={5: 1.0})
    assert list(stream) == ["why", " is", " it", " ©?"]
    answer = stream.answer
    assert (answer.text, answer.model, answer.seed, answer.degraded) == ("why is it ©?", "m", 17, ())
    assert answer.choices == (Choice(0, "why is it ©?", "stop", (3, 3, 3, 3)),)
    assert (answer.usage, answer.timings) == (Usage(**USAGE), Timings(**TIMINGS))
    assert daemon.asked("chat")[0].params == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "why is it ©?"}],
        "temperature": 0,
        "logit_bias": {"5": 1.0},
    }


def test_conversation(daemon: FakeDaemon, client: Client) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert client.chat(messages).read().text == "c"
    assert daemon.asked("chat")[0].params["messages"] == messages


def test_complete(client: Client) -> None:
    assert "".join(client.complete("once upon a time")) == "once upon a time"
    assert client.complete([1, 2]).read().text == "[1, 2]"


def test_events(client: Client) -> None:
    events = list(client.chat("progress now").events())
    assert events == [
        Progress("load", 1 << 20, 1 << 21, 4),
        Progress("queue", 2, 0, 4),
        Progress("prefill", 5, 9, 4),
        Text(0, "progress", (8,)),
        Text(0, " now", (4,)),
    ]


def test_two_choices(client: Client) -> None:
    stream = client.chat("two", n=2)
    assert list(stream) == ["first"]
    assert [choice.text for choice in stream.answer.choices] == ["first", "second"]
    assert [e.choice for e in client.chat("two", n=2).events() if isinstance(e, Text)] == [0, 1]


def test_logprobs(client: Client) -> None:
    best = (Logprob(7, b"\xc3", -0.5), Logprob(8, b"b", -1.5))
    stream = client.chat("logprobs", logprobs=2)
    (text,) = stream.events()
    assert isinstance(text, Text)
    assert text.logprobs == stream.answer.choices[0].logprobs == (Logprob(7, b"\xc3", -0.5, best),)


def test_no_stream(client: Client) -> None:
    stream = client.chat("a b", stream=False)
    assert list(stream) == []
    assert stream.answer.text == "a b"


def test_the_small_methods(client: Client) -> None:
    assert client.tokenize("hi", bos=True).tokens == (1, 104, 105)
    assert client.tokenize("hi", pieces=True).pieces == (b"h", b"i")
    assert client.detokenize([104, 105]) == "hi"
    assert client.template("q", system="s").prompt == "<system>s<user>q"
    assert [(m.name, m.default, m.state) for m in client.models()] == [("fake", True, "here")]
    status = client.status()
    assert (status.uptime_s, status.socket.mode, status.engine.state) == (1.5, "0600", "starting")
    assert status.models == (Loaded("fake", {"weights": 5, "kv": 100 << 20}, 2048, 1.0, Cache(**CACHE), 2),)
    assert [request.phase for request in status.requests] == ["decode"]
    assert client.api() == {"level": 1}


@pytest.mark.parametrize("name", ["busy", "context_too_long", "no_memory", "engine_failed"])
def test_errors(client: Client, name: str) -> None:
    with pytest.raises(LuceError) as raised:
        list(client.chat(f"error {name}"))
    assert (raised.value.name, raised.value.data) == (name, {"fact": 1})
    assert client.chat("still here").read().text == "still here"


def test_unknown_parameter(client: Client) -> None:
    with pytest.raises(LuceError) as raised:
        client.chat("x", temprature=1).read()  # type: ignore[call-arg]
    assert raised.value.name == "unknown_parameter"


def test_streams_in_turns(client: Client) -> None:
    a, b = client.chat("a b c"), client.chat("x y z")
    assert [piece for pair in zip(a, b, strict=True) for piece in pair] == ["a", "x", " b", " y", " c", " z"]
    assert (a.answer.text, b.answer.text) == ("a b c", "x y z")


def test_a_call_between_pieces(client: Client) -> None:
    stream = client.chat("a b c")
    pieces = iter(stream)
    assert next(pieces) == "a"
    assert client.detokenize([104]) == "h"
    assert list(pieces) == [" b", " c"]


def test_leaving_the_loop_cancels(daemon: FakeDaemon, client: Client) -> None:
    stream = client.chat("wait")
    for piece in stream:
        assert piece == "working"
        break
    assert daemon.wait_for("cancel").params == {"id": stream.id}
    with pytest.raises(LuceError) as raised:
        _ = stream.answer
    assert raised.value.name == "cancelled"
    assert client.chat("go on").read().text == "go on"  # what came late for the cancelled one is not mixed in


def test_leaving_the_block_cancels(daemon: FakeDaemon, client: Client) -> None:
    with client.chat("wait") as stream:
        client.status()  # by now a piece has come, unread
    with pytest.raises(LuceError) as raised:
        list(stream)
    assert raised.value.name == "cancelled"
    assert daemon.wait_for("cancel").params == {"id": stream.id}
    with client.chat("done") as stream:
        stream.read()
    client.status()
    assert len(daemon.asked("cancel")) == 1


def test_cancel_by_id(client: Client) -> None:
    stream = client.chat("wait")
    assert client.cancel(stream.id)
    assert not client.cancel(stream.id)
    with pytest.raises(LuceError) as raised:
        list(stream)
    assert raised.value.name == "cancelled"


def test_answer_before_the_end(client: Client) -> None:
    stream = client.chat("a b")
    with pytest.raises(RuntimeError):
        _ = stream.answer
    next(iter(stream))


def test_silence(daemon: FakeDaemon) -> None:
    with Client(daemon.path) as client:
        client._timeout = 0.05
        with pytest.raises(LuceError) as raised:
            list(client.chat("wait"))
        assert raised.value.name == "deadline"
        daemon.wait_for("cancel")


def test_interrupt_in_the_loop(daemon: FakeDaemon, client: Client) -> None:
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        for _ in client.chat("wait"):
            raise KeyboardInterrupt
    daemon.wait_for("cancel")
    assert client.chat("go on").read().text == "go on"


def test_interrupt_while_waiting(daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def poll(self, timeout_ms: float) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

    stream = client.chat("wait")
    pieces = iter(stream)
    assert next(pieces) == "working"
    monkeypatch.setattr(client, "_poll", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        next(pieces)
    daemon.wait_for("cancel")
    assert client.chat("go on").read().text == "go on"


@pytest.mark.parametrize(
    ("question", "name"), [("die", "connection_lost"), ("garbage", "bad_frame"), ("refuse", "too_large")]
)
def test_the_connection_breaks(client: Client, question: str, name: str) -> None:
    other = client.chat("wait")
    for stream in (client.chat(question), other):
        with pytest.raises(LuceError) as raised:
            list(stream)
        assert raised.value.name == name
    with pytest.raises(LuceError):
        client.status()


def test_closed(client: Client) -> None:
    stream = client.chat("wait")
    client.close()
    for use in (lambda: list(stream), client.status):
        with pytest.raises(LuceError) as raised:
            use()
        assert raised.value.name == "connection_lost"


def test_too_large_to_send(client: Client) -> None:
    with pytest.raises(LuceError) as raised:
        client.chat("x" * (16 << 20))
    assert raised.value.name == "too_large"
    assert client.chat("go on").read().text == "go on"


def test_a_large_answer(client: Client) -> None:
    assert len(client.chat("huge").read().text) == 5_000_000


def test_text_that_is_no_unicode(client: Client) -> None:
    with pytest.raises(LuceError) as raised:
        client.chat("\udcff")
    assert raised.value.name == "bad_parameter"
    client.status()


def test_no_daemon(tmp_path: Path) -> None:
    path = tmp_path / "none.sock"
    for _ in range(2):
        with pytest.raises(LuceError) as raised:
            Client(path)
        assert raised.value.name == "not_running"
        assert str(path) in raised.value.message
        assert "luced serve" in raised.value.remedy
        path.touch()  # a file that nobody listens on


@pytest.mark.parametrize("kind", [Choice, Logprob, Usage, Timings, Limits, Model, Socket, Engine, Loaded, Running])
def test_types_are_those_of_the_table(kind: Any) -> None:
    fields = {t.name: t.fields for t in TYPES}[kind.__name__]
    assert list(kind.__dataclass_fields__) == [f.name for f in fields]


def test_sampling_is_that_of_the_table() -> None:
    def python(field: Field) -> str:
        kinds = {"map[int,float]": "Mapping[int, float]", "list[str]": "Sequence[str]", "list[int]": "Sequence[int]"}
        kinds["duration"] = "str | float"
        return kinds.get(field.type, field.type)

    annotations = {name: hint.__forward_arg__ for name, hint in Sampling.__annotations__.items()}
    assert annotations == {f.name: python(f) for f in SAMPLING}


def test_version_is_the_daemons() -> None:
    root = Path(__file__).parents[2]
    assert f'__version__ = "{luce.__version__}"' in (root / "luced/__init__.py").read_text()
