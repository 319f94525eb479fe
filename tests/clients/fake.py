"""A daemon without an engine, on a real Unix socket: what it does is chosen by the text of the question.

A question is echoed word by word, but for those that _Session._answer lists.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from luce import wire
from luce.errors import LuceError
from luce.messages import BY_NAME, LEVEL, MAX_FRAME_BYTES, check

WAIT_S = 60  # for what comes at once, but on a busy machine
LIMITS = {"frame_bytes": MAX_FRAME_BYTES, "nesting": 64, "items": 1 << 21, "requests": 512}
COUNTS = {"steps": 1, "rows": 9, "cached_tokens": 4, "preempted": 0, "evicted": 0}
CACHE = {"pages": 100, "used": 25, "cached": 50, **COUNTS}
LOADED = {
    "name": "fake",
    "memory": {"weights": 5, "kv": 100 << 20},
    "context": 2048,
    "since": 1.0,
    "cache": CACHE,
    "requests": 2,
}
USAGE = {"prompt": 9, "cached": 4, "generated": 2, "drafted": 0, "accepted": 0}
TIMINGS = {"queue_s": 0.0, "load_s": 0.5, "restart_s": 0.0, "prefill_s": 0.25, "decode_s": 0.125, "total_s": 0.875}


class FakeDaemon:
    """Listens within `with`. `requests` holds what clients asked for, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[wire.Request] = []
        self.n_closed = 0
        self._changed = threading.Condition()
        self._listener: socket.socket
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._spawn(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in [self._listener, *self._connections]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        for each in [self._listener, *self._connections]:
            each.close()

    def wait_for(self, method: str, n: int = 1) -> wire.Request:
        """The n-th request of this method, once it has come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked(method)) >= n, WAIT_S), f"no {method} came"
            return self.asked(method)[n - 1]

    def wait_for_end(self) -> None:
        """Until a client's connection has ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.n_closed > 0, WAIT_S), "no connection ended"

    def asked(self, method: str) -> list[wire.Request]:
        return [request for request in self.requests if request.method == method]

    def _spawn(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        reader, session = wire.Connection(), _Session(connection)
        try:
            while data := connection.recv(65536):
                reader.feed(data)
                for event in reader:
                    assert isinstance(event, wire.Request)
                    with self._changed:
                        self.requests.append(event)
                        self._changed.notify_all()
                    session.take(event)
        except OSError:
            pass
        with self._changed:
            self.n_closed += 1
            self._changed.notify_all()


class _Session:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: set[int] = set()

    def take(self, request: wire.Request) -> None:
        try:
            params = check(BY_NAME[request.method], request.params)
            result = getattr(self, request.method)(request.id, params)
        except LuceError as error:
            self._send(wire.response(request.id, error.to_wire(), None))
        else:
            if result is not None:
                self._send(wire.response(request.id, None, result))

    def _send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def _text(self, request_id: int, text: str, choice: int = 0, logprobs: Any = None) -> None:
        fields = {"id": request_id, "choice": choice, "text": text, "tokens": [len(text)]}
        self._send(wire.notification("text", fields | ({"logprobs": logprobs} if logprobs else {})))

    def hello(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        return {
            "level": min(params["level"], LEVEL),
            "version": "0",
            "instance": "fake",
            "tenant": params["tenant"],
            "role": "user",
            "limits": LIMITS,
            "methods": list(BY_NAME),
            "unknown": "from the future",
        }

    def chat(self, request_id: int, params: dict[str, Any]) -> dict[str, Any] | None:
        return self._answer(request_id, params["messages"][-1]["content"], params)

    def complete(self, request_id: int, params: dict[str, Any]) -> dict[str, Any] | None:
        return self._answer(request_id, str(params["prompt"]), params)

    def _answer(self, request_id: int, text: str, params: dict[str, Any]) -> dict[str, Any] | None:
        texts, logprobs, degraded = [text], None, []
        match text.split():
            case ["wait", *_]:
                self._text(request_id, "working")
                self._waiting.add(request_id)
                return None
            case ["die", *_]:
                self._text(request_id, "working")
                self._connection.shutdown(socket.SHUT_RDWR)
                return None
            case ["garbage", *_]:
                self._send(b"\xc1")
                return None
            case ["refuse", *_]:
                self._send(wire.response(0, LuceError("too_large", "a frame was too large").to_wire(), None))
                return None
            case ["error", name]:
                raise LuceError(name, f"a fault called {name}", {"fact": 1})
            case ["progress", *_]:
                for phase, done, total in (("load", 1 << 20, 1 << 21), ("queue", 2, 0), ("prefill", 5, 9)):
                    fields = {"id": request_id, "phase": phase, "done": done, "total": total, "cached": 4}
                    self._send(wire.notification("progress", fields))
            case ["two", *_]:
                texts = ["first", "second"]
            case ["huge", *_]:
                texts = ["x" * 5_000_000]
            case ["logprobs", *_]:
                top = [{"id": 7, "bytes": b"\xc3", "logprob": -0.5}, {"id": 8, "bytes": b"b", "logprob": -1.5}]
                logprobs = [{"id": 7, "bytes": b"\xc3", "logprob": -0.5, "top": top}]
            case ["degraded", *_]:
                degraded = ["it was shortened"]
        if params["stream"]:
            for choice, whole in enumerate(texts):
                for piece in _pieces(whole):
                    self._text(request_id, piece, choice, logprobs)
        choices = [
            {
                "index": i,
                "text": whole,
                "finish": "stop",
                "tokens": [len(p) for p in _pieces(whole)],
                "logprobs": logprobs,
            }
            for i, whole in enumerate(texts)
        ]
        return {
            "model": params["model"] or "fake",
            "choices": choices,
            "usage": USAGE,
            "timings": TIMINGS,
            "seed": params["seed"] or 17,
            "degraded": degraded,
        }

    def subscribe(self, request_id: int, params: dict[str, Any]) -> None:
        """Tells of one thing for each topic. Where that is `models` alone, the connection ends then; where it is
        `requests` alone, the subscription is dropped."""
        topics = params["topics"]
        for topic, event in [("", "subscribed"), *((topic, "unloaded") for topic in topics)]:
            facts = {"model": "fake"} if topic else {"topics": topics}
            fields = {"id": request_id, "topic": topic, "event": event, "at": 1.5, "facts": facts}
            self._send(wire.notification("event", fields))
        if topics == ["models"]:
            self._connection.shutdown(socket.SHUT_RDWR)
        elif topics == ["requests"]:
            self._send(wire.response(request_id, LuceError("too_slow", "it was not read").to_wire(), None))
        else:
            self._waiting.add(request_id)

    def cancel(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        if params["id"] not in self._waiting:
            return {"cancelled": False}
        self._waiting.remove(params["id"])
        self._text(params["id"], "too late")
        error = LuceError("cancelled", "the request was cancelled")
        self._send(wire.response(params["id"], error.to_wire(), None))
        return {"cancelled": True}

    def tokenize(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        data = params["text"].encode()
        pieces = {"pieces": [bytes([b]) for b in data]} if params["pieces"] else {}
        return {"tokens": [1] * params["bos"] + list(data), **pieces}

    def detokenize(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        return {"text": bytes(params["tokens"]).decode(errors="replace")}

    def template(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": "".join(f"<{m['role']}>{m['content']}" for m in params["messages"]), "tokens": [1, 2]}

    def models(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        model = {"name": "fake", "path": "/fake.gguf", "bytes": 1, "architecture": "llama", "quantisation": "Q4_1"}
        return {"models": [model | {"parameters": 1, "context": 2048, "default": True, "state": "here", "problem": ""}]}

    def load(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        for done in (1 << 20, 1 << 21):
            fields = {"id": request_id, "phase": "load", "done": done, "total": 1 << 21}
            self._send(wire.notification("progress", fields))
        return {
            "model": LOADED | {"name": params["model"] or "fake", "context": params["n_ctx"] or 2048},
            "load_s": 0.5,
        }

    def unload(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        if params["model"] == "used" and not params["force"]:
            raise LuceError("busy", "2 requests use it")
        return {"unloaded": params["model"] != "other"}

    def status(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        running = {"id": request_id, "client": "", "model": "fake", "phase": "decode", "prompt": 9, "generated": 1}
        return {
            "version": "0",
            "instance": "fake",
            "pid": 1,
            "uptime_s": 1.5,
            "socket": {"path": "/run/x", "mode": "0600", "group": "", "problem": "no group"},
            "engine": {
                **dict.fromkeys(("pid", "device", "isa", "threads")),
                "state": "starting",
                "restarts": 0,
                "last_failure": "",
            },
            "models": [LOADED],
            "requests": [running | {"age_s": 0.5}],
        }

    def api(self, request_id: int, params: dict[str, Any]) -> dict[str, Any]:
        return {"api": {"level": LEVEL}}


def _pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [words[0], *(f" {word}" for word in words[1:])]
