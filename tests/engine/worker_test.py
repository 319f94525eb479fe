"""The engine's loop over a real socket, with models that are made up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Iterator

import pytest

from luce import wire
from luced import link
from luced.engine.plan import Emitted, Model, Plan
from luced.engine.port import Port
from luced.engine.worker import Worker
from luced.errors import ModelError
from tests.engine.fake import FakeModel, alone


class Front:
    """The other end of a worker that runs in a thread; blocking, with a timeout."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        self.models: dict[str, FakeModel] = {}
        self.runs_ahead = False  # those that are loaded
        self.steps: list[int] = []  # that all models had had, at each slice of a load
        self.may_load = threading.Event()
        self.may_load.set()
        self.socket = ours
        self._connection = wire.TrustedConnection()
        self._heard: list[link.Message] = []
        self.thread = threading.Thread(target=self._work, args=(theirs,))
        self.thread.start()

    def _work(self, end: socket.socket) -> None:
        with end:
            Worker(Port(end), self._load).run()

    def _load(self, load: link.Load) -> Generator[tuple[int, int], None, Model]:
        match load.path:
            case "missing":
                raise ModelError("bad_model_file", "missing: there is no such file")
            case "huge":
                raise MemoryError
        for done in range(4):
            assert self.may_load.wait(60)
            self.steps.append(sum(len(model.plans) for model in self.models.values()))
            yield done, 4
        self.models[load.model] = FakeModel(runs_ahead=self.runs_ahead)
        return self.models[load.model]

    def say(self, *messages: link.Message) -> None:
        for message in messages:
            self.socket.sendall(wire.notification(*link.to_wire(message)))

    def hear(self) -> link.Message:
        while not self._heard:
            data = self.socket.recv(1 << 16)
            assert data, "the engine closed the link"
            self._connection.feed(data)
            for event in self._connection:
                assert isinstance(event, wire.Notification)
                self._heard.append(link.from_wire(event.method, event.params))
        return self._heard.pop(0)

    def hear_until(self, *kinds: type[link.Message]) -> list[link.Message]:
        messages = [self.hear()]
        while not isinstance(messages[-1], kinds):
            messages.append(self.hear())
        return messages

    def load(self, name: str = "m") -> link.Loaded:
        self.say(link.Load(name, "a file"))
        loaded = self.hear_until(link.Loaded)[-1]
        assert isinstance(loaded, link.Loaded)
        return loaded


@pytest.fixture
def front() -> Iterator[Front]:
    front = Front()
    yield front
    front.socket.close()
    front.thread.join(60)
    assert not front.thread.is_alive()


def generate(request_id: int = 1, model: str = "m", max_tokens: int = 5, n_prompt: int = 20) -> link.Generate:
    return link.Generate(request_id, model, [i % 7 for i in range(n_prompt)], link.Sampling(), [], max_tokens)


class Gate(threading.Semaphore):
    """What the steps of a model wait at; each takes one permit."""

    def __init__(self, n_steps: int) -> None:
        super().__init__(n_steps)
        self.reached = threading.Event()  # by a step: from here on the worker hears nothing

    def let_through(self) -> None:
        self.reached.set()
        assert self.acquire(timeout=60)


def gated(front: Front, n_steps: int, name: str = "m") -> Gate:
    """Loads the model; it makes n_steps, and one more for each release."""
    front.load(name)
    model, gate = front.models[name], Gate(n_steps)
    step = model.step

    def wait_and_step(plan: Plan) -> list[Emitted]:
        gate.let_through()
        return step(plan)

    model.step = wait_and_step  # type: ignore[method-assign]
    return gate


def tokens(messages: list[link.Message], request_id: int = 1) -> list[int]:
    return [t for m in messages if isinstance(m, link.Tokens) and m.id == request_id for t in m.tokens]


def test_loads_and_answers(front: Front) -> None:
    loaded = front.load()
    assert (loaded.model, loaded.architecture, loaded.n_vocab, loaded.memory) == ("m", "fake", 50, {"kv": 1})
    assert loaded.n_ctx == 63 * 4  # what the pages hold
    front.say(generate())
    messages = front.hear_until(link.Finished)
    assert tokens(messages) == alone(front.models["m"].groups, generate(), 0)[0]
    progress = [m for m in messages if isinstance(m, link.Progress)]
    assert [(p.n_done, p.n_total, p.n_cached) for p in progress] == [(16, 20, 0), (20, 20, 0)]
    finished = messages[-1]
    assert isinstance(finished, link.Finished)
    assert finished.reason == "length"
    assert finished.usage == {"n_prompt": 20, "n_cached": 0, "n_generated": 5, "n_drafted": 0, "n_accepted": 0}
    assert set(finished.timings) == {"queue_s", "prefill_s", "decode_s"}
    assert all(value >= 0 for value in finished.timings.values())


def test_a_load_tells_how_far_it_is_while_others_are_answered(front: Front) -> None:
    front.load()
    front.may_load.clear()
    front.say(link.Load("other", "a file"))
    front.say(generate())
    front.may_load.set()
    messages = front.hear_until(link.Loaded)
    assert any(isinstance(m, link.Loading) and (m.model, m.total_bytes) == ("other", 4) for m in messages)
    if not any(isinstance(m, link.Finished) for m in messages):
        messages += front.hear_until(link.Finished)
    assert tokens(messages) == alone(front.models["m"].groups, generate(), 0)[0]


def test_a_load_gives_way_to_a_step_after_each_slice(front: Front) -> None:
    gate = gated(front, 0)
    front.say(generate(max_tokens=200))
    assert gate.reached.wait(60)
    front.say(link.Load("other", "a file"))
    gate.release(1000)
    front.hear_until(link.Loaded)
    between = [b - a for a, b in zip(front.steps, front.steps[1:], strict=False)]
    assert between[4:] == [1, 1, 1]  # the slices of `other`; those of `m` had nobody beside them
    assert set(between[:3]) == {0}


@pytest.mark.parametrize(("path", "code"), [("missing", "bad_model_file"), ("huge", "no_memory")])
def test_a_model_that_cannot_be_loaded_is_refused(front: Front, path: str, code: str) -> None:
    front.say(link.Load("m", path))
    refused = front.hear()
    assert isinstance(refused, link.Refused)
    assert (refused.model, refused.error["name"]) == ("m", code)
    assert front.load().model == "m"


def test_two_models_take_turns(front: Front) -> None:
    gate = gated(front, 0, "a")
    front.load("b")
    front.say(generate(1, "a", 200), generate(2, "b", 5))
    gate.release(1000)
    messages = front.hear_until(link.Finished)
    assert isinstance(messages[-1], link.Finished)
    assert messages[-1].id == 2
    messages += front.hear_until(link.Finished)
    assert tokens(messages, 2) == alone(front.models["b"].groups, generate(2, "b", 5), 0)[0]


def test_requests_that_cannot_run_fail_by_name(front: Front) -> None:
    front.say(generate(1))
    first = front.hear()
    front.load()
    front.say(generate(2, max_tokens=1000), generate(3, n_prompt=0))
    errors = {m.id: m.error["name"] for m in (first, front.hear(), front.hear()) if isinstance(m, link.Failed)}
    assert errors == {1: "unknown_model", 2: "context_too_long", 3: "bad_parameter"}


def test_unload_ends_its_requests(front: Front) -> None:
    gate = gated(front, 0)
    front.say(generate(1, max_tokens=200), link.Unload("m"))
    gate.release(1000)
    messages = front.hear_until(link.Unloaded)
    assert isinstance(messages[-2], link.Failed)
    assert front.models["m"].is_closed


def test_abandoned_and_truncated(front: Front) -> None:
    front.load()
    fake, may_go_on, spoken = front.models["m"], threading.Event(), threading.Event()
    step = fake.step

    def wait_and_step(plan: Plan) -> list[Emitted]:
        if spoken.is_set():
            assert may_go_on.wait(60)
        emitted = step(plan)
        if emitted:
            spoken.set()
        return emitted

    fake.step = wait_and_step  # type: ignore[method-assign]
    front.say(generate(1, max_tokens=200), generate(2, max_tokens=200))
    front.hear_until(link.Tokens)
    front.say(link.Abandon(1), link.Truncate(2, 0, 1), link.AskState(7))
    may_go_on.set()  # not before: they would be done
    messages = front.hear_until(link.State)
    finished = [m for m in messages if isinstance(m, link.Finished)]
    assert [(f.id, f.reason) for f in finished] == [(2, "truncated")]
    state = messages[-1]
    assert isinstance(state, link.State)
    (model,) = state.state["models"]
    assert (model["model"], model["requests"]) == ("m", [])


def test_stop_ends_it(front: Front) -> None:
    front.load()
    front.say(generate(1, max_tokens=200), link.Stop())
    front.thread.join(60)
    assert not front.thread.is_alive()
    assert front.models["m"].is_closed


def test_a_front_that_reads_late_misses_nothing(front: Front) -> None:
    front.load()
    front.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    requests = [generate(i, max_tokens=200) for i in range(1, 9)]
    front.say(*requests)
    front.say(link.AskState(1))
    messages: list[link.Message] = []
    while sum(isinstance(m, link.Finished) for m in messages) < len(requests):
        messages += front.hear_until(link.Finished)
    expected = alone(front.models["m"].groups, requests[0], 0)[0]
    assert all(tokens(messages, r.id) == expected for r in requests)
