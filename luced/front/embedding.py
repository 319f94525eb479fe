"""One `embed`: texts or tokens in, a vector for each out."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Any

from luce.errors import from_wire
from luced import link
from luced.errors import RequestError
from luced.front.answers import check_tokens
from luced.front.call import Call
from luced.front.request import EngineRequest, Wait
from luced.front.resident import Resident
from luced.front.texts import Text


class Embedding:
    """A running request, as `status` shows it. Each input is a request of the engine."""

    def __init__(self, call: Call, resident: Resident, text: Text) -> None:
        self.call = call
        self.phase = "load"
        self.n_prompt = 0
        self._resident = resident
        self._text = text
        call.model = resident.name

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        return {
            "id": self.call.id,
            "client": self.call.session.client,
            "model": self._resident.name,
            "phase": self.phase,
            "prompt": self.n_prompt,
            "generated": 0,
            "age_s": self.call.age_s,
        }

    async def run(self) -> dict[str, Any]:
        """The result of the method. The death of an engine makes it wait."""
        self.call.daemon.answers.add(self)
        try:
            inputs = await self._tokens(self.call.params["inputs"])
            self.n_prompt = sum(map(len, inputs))
            began_at = time.monotonic()
            loaded = await self.call.daemon.residency.loaded(self._resident, self.call.tell_loading)
            return await self._embed(inputs, loaded, load_s=time.monotonic() - began_at)
        finally:
            self.call.daemon.answers.remove(self)

    async def _tokens(self, given: list[str | list[int]]) -> list[list[int]]:
        texts = [one for one in given if isinstance(one, str)]
        encoded = iter(await self._text.encode(texts, special=False, bos=True) if texts else [])
        inputs = [next(encoded) if isinstance(one, str) else one for one in given]
        if not all(inputs):
            raise RequestError("bad_parameter", "inputs: one of them is empty", parameter="inputs")
        return inputs

    async def _embed(self, inputs: list[list[int]], loaded: link.Loaded, load_s: float) -> dict[str, Any]:
        params = self.call.params
        if "embed" not in loaded.capabilities:
            raise RequestError("not_supported", f"{loaded.model} ({loaded.architecture}) makes no embeddings")
        for i, tokens in enumerate(inputs):
            check_tokens(f"inputs[{i}]", tokens, loaded.n_vocab)
        pooling = params["pooling"] or loaded.pooling
        vectors: list[list[float]] = []
        ends: list[link.Finished] = []
        n_done = 0
        with ExitStack() as stack:
            requests = [
                stack.enter_context(self.call.daemon.supervisor.roster.request(self._generate(loaded, tokens, pooling)))
                for tokens in inputs
            ]
            self.phase = "queue"
            for request, tokens in zip(requests, inputs, strict=True):
                vector, end = await self._receive(request, n_done)
                vectors.append(_finished(vector, params["dimensions"], params["normalise"]))
                ends.append(end)
                n_done += len(tokens)
        return {
            "model": loaded.model,
            "embeddings": vectors,
            "pooling": pooling,
            "usage": {"prompt": self.n_prompt, "cached": sum(f.usage["n_cached"] for f in ends)}
            | dict.fromkeys(("generated", "drafted", "accepted"), 0),
            "timings": {
                "queue_s": max(f.timings["queue_s"] for f in ends),
                "load_s": load_s,
                "restart_s": max(f.timings["restart_s"] for f in ends),
                "prefill_s": max(f.timings["prefill_s"] for f in ends),
                "decode_s": 0.0,
                "total_s": self.call.age_s,
            },
        }

    def _generate(self, loaded: link.Loaded, tokens: list[int], pooling: str) -> link.Generate:
        """RequestError: it does not fit the context; nothing is ever cut to fit."""
        if len(tokens) > loaded.n_ctx:
            what = f"an input has {len(tokens)} tokens, the context holds {loaded.n_ctx}"
            raise RequestError("context_too_long", what, n_prompt=len(tokens), n_ctx=loaded.n_ctx)
        session = self.call.session
        return link.Generate(
            id=0,  # the roster numbers them
            model=loaded.model,
            prompt=tokens,
            sampling=link.Sampling(),
            stop_ids=[],
            max_tokens=0,
            priority=self.call.params["priority"],
            tenant=session.tenant,
            client=session.number,
            pooling=pooling,
        )

    async def _receive(self, request: EngineRequest, n_before: int) -> tuple[list[float], link.Finished]:
        vector: list[float] = []
        while True:
            message = await request.receive()
            match message:
                case Wait():
                    self.phase = message.phase
                    await self.call.notify("progress", **message._asdict())
                case link.Progress():
                    self.phase = "prefill"
                    await self.call.notify(
                        "progress",
                        phase="prefill",
                        done=n_before + message.n_done,
                        total=self.n_prompt,
                        cached=message.n_cached,
                    )
                case link.Embedded():
                    vector = message.vector
                case link.Finished():
                    return vector, message
                case link.Failed():
                    raise from_wire(message.error)


def _finished(vector: list[float], dimensions: int | None, normalise: bool) -> list[float]:
    """The first `dimensions` of it, then of length 1. RequestError: it has not so many."""
    if dimensions is not None and dimensions > len(vector):
        what = f"dimensions is {dimensions}, the model's vectors have {len(vector)}"
        raise RequestError("bad_parameter", what, parameter="dimensions")
    vector = vector[:dimensions]
    length = math.sqrt(math.fsum(x * x for x in vector)) if normalise else 1.0
    return [x / length for x in vector] if length else vector
