"""One `chat` or `complete`: from a prompt in tokens to its answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from luce.errors import from_wire
from luced import link
from luced.errors import RequestError
from luced.front.call import Call
from luced.front.choice import Choice, Piece
from luced.front.request import EngineRequest, Wait
from luced.front.resident import Resident
from luced.front.texts import Text
from luced.text.fence import Fence
from luced.text.prompt import Prompt

SAMPLING = {
    "temperature", "top_k", "top_p", "min_p", "typical_p",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias",
}  # fmt: skip


class Answer:
    """A running request, as `status` shows it, and what it has said so far."""

    def __init__(
        self,
        call: Call,
        resident: Resident,
        text: Text,
        prompt: Prompt,
        degraded: Sequence[str] = (),
        in_chat: bool = False,
    ) -> None:
        """`in_chat`: the answer is a message, of which an `infill` takes the fence off."""
        self.call = call
        self.entry = resident.entry
        self.phase = ""
        self.choices: list[Choice] = []
        self._running: EngineRequest | None = None
        self.n_prompt = len(prompt.tokens)
        self._resident = resident  # which the caller holds
        self._text = text
        self._prompt = prompt
        self._degraded = list(degraded)
        self._in_chat = in_chat
        settings = call.daemon.config.of_model(resident.entry.names)
        self._params = call.params | {name: settings[name] for name in settings.keys() & SAMPLING - call.given}
        # 53 bits: what the numbers of every client's language hold.
        self._seed: int = secrets.randbits(53) if call.params["seed"] is None else call.params["seed"]
        self._with_logprobs = call.params["logprobs"] is not None
        self._load_s = 0.0
        call.model = self.entry.name

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        return {
            "id": self.call.id,
            "client": self.call.session.client,
            "model": self.entry.name,
            "phase": self._shown_phase,
            "prompt": self.n_prompt,
            "generated": self.n_generated,
            "age_s": self.call.age_s,
        }

    @property
    def _shown_phase(self) -> str:
        is_paused = self.phase == "decode" and self._running is not None and self._running.is_paused
        return "paused" if is_paused else self.phase

    @property
    def n_generated(self) -> int:
        return sum(choice.n_generated for choice in self.choices)

    async def run(self) -> dict[str, Any]:
        """The result of the method. The death of an engine makes it wait."""
        self.call.daemon.answers.add(self)
        try:
            return self._result(await self._generate(self._request(await self._load())))
        finally:
            self.call.daemon.answers.remove(self)

    async def _load(self) -> link.Loaded:
        self._enter("load")
        begin = time.monotonic()
        loaded = await self.call.daemon.residency.loaded(self._resident, self.call.tell_loading)
        self._load_s = time.monotonic() - begin
        return loaded

    def _request(self, loaded: link.Loaded) -> link.Generate:
        """RequestError: it does not fit the context, or names tokens that the model does not have."""
        params = self._params
        max_tokens = _max_tokens(self.n_prompt, params["max_tokens"], loaded.n_ctx)
        check_tokens("prompt", self._prompt.tokens, loaded.n_vocab)
        check_tokens("stop_ids", params["stop_ids"], loaded.n_vocab)
        check_tokens("logit_bias", params["logit_bias"], loaded.n_vocab)
        return link.Generate(
            id=0,  # the roster numbers them
            model=loaded.model,
            prompt=self._prompt.tokens,
            sampling=_sampling(params, self._seed),
            stop_ids=sorted({*params["stop_ids"], *(() if params["ignore_eos"] else self._text.eog_ids)}),
            max_tokens=max_tokens,
            n=params["n"],
            boundaries=self._prompt.boundaries,
            priority=params["priority"],
            tenant=self.call.session.tenant,
            client=self.call.session.number,
        )

    async def _generate(self, generate: link.Generate) -> list[link.Finished]:
        stops, stop_ids = self._params["stop"], frozenset(generate.stop_ids)
        pieces, is_infill = self._text.pieces, self.call.method == "infill"
        self.choices = [
            Choice(i, pieces, self._in_chat, stops, stop_ids, Fence() if self._in_chat and is_infill else None)
            for i in range(generate.n)
        ]
        self._enter("queue")
        finished: list[link.Finished] = []
        with self.call.daemon.supervisor.roster.request(generate) as request:
            self._running = request
            request.listen(self._hear)
            while len(finished) < generate.n:
                message = await request.receive()
                match message:
                    case Wait():
                        self._enter(message.phase)
                        await self.call.notify("progress", **message._asdict())
                    case link.Progress():
                        self._enter("prefill")
                        await self.call.notify(
                            "progress",
                            phase="prefill",
                            done=message.n_done,
                            total=message.n_total,
                            cached=message.n_cached,
                        )
                    case link.Tokens():
                        self._enter("decode")
                        await self._send(self._add(message))
                    case link.Finished():
                        finished.append(message)
                        choice = self.choices[message.choice]
                        await self._send(self._frame(choice, choice.end(message.reason)))
                    case link.Failed():
                        raise from_wire(message.error)
        return finished

    def _enter(self, phase: str) -> None:
        """`phase` begins, or goes on: then there is nothing to do, for each token comes here."""
        if phase == self.phase:
            return
        self.phase = phase
        if phase in ("prefill", "decode"):
            self.call.daemon.queue.leave(self.call)
        self.call.done = {"phase": phase, "prompt": self.n_prompt, "generated": self.n_generated}

    def _hear(self, message: link.Tokens) -> bool:
        """False: the client does not keep up, and tokens wait for it."""
        if self.call.session.is_behind:
            return False
        self._enter("decode")
        if frame := self._add(message):
            self.call.session.try_send(frame)
        return True

    async def _send(self, frame: bytes | None) -> None:
        if frame is not None:
            await self.call.session.send(frame)

    def _add(self, message: link.Tokens) -> bytes | None:
        """The notification of what they show, if it is to be sent."""
        choice = self.choices[message.choice]
        was_finished, n_before = choice.finish, choice.n_generated
        piece = choice.add(message.tokens, message.logprobs)
        self.call.done["generated"] += choice.n_generated - n_before
        if choice.finish and not was_finished and self._running is not None:
            self._running.truncate(choice.index, choice.n_generated)
        return self._frame(choice, piece)

    def _frame(self, choice: Choice, piece: Piece | None) -> bytes | None:
        if piece is None or not self._params["stream"]:
            return None
        fields: dict[str, Any] = {"choice": choice.index, "text": piece.text, "tokens": piece.tokens}
        if self._with_logprobs:
            fields["logprobs"] = piece.logprobs
        return self.call.notification("text", **fields)

    def _result(self, finished: list[link.Finished]) -> dict[str, Any]:
        usages = [f.usage for f in finished]
        timings = [f.timings for f in finished]
        return {
            "model": self.entry.name,
            "choices": [choice.to_wire(self._with_logprobs) for choice in self.choices],
            "usage": {
                "prompt": self.n_prompt,
                "cached": max(u["n_cached"] for u in usages),
                "generated": self.n_generated,
                "drafted": sum(u["n_drafted"] for u in usages),
                "accepted": sum(u["n_accepted"] for u in usages),
            },
            "timings": {
                "queue_s": max(t["queue_s"] for t in timings),
                "load_s": self._load_s,
                "restart_s": max(t["restart_s"] for t in timings),
                "prefill_s": max(t["prefill_s"] for t in timings),
                "decode_s": max(t["decode_s"] for t in timings),
                "total_s": self.call.age_s,
            },
            "seed": self._seed,
            "degraded": self._degraded,
        }


def check_tokens(name: str, ids: list[int] | dict[int, float], n_vocab: int) -> None:
    for i in ids:
        if not 0 <= i < n_vocab:
            raise RequestError(
                "bad_parameter", f"{name}: the model has no token {i}; ids go from 0 to {n_vocab - 1}", parameter=name
            )


def _max_tokens(n_prompt: int, wanted: int | None, n_ctx: int) -> int:
    """How many tokens to generate. RequestError: more than the context holds; nothing is ever cut to fit."""
    room = n_ctx - n_prompt
    facts: dict[str, Any] = {"n_prompt": n_prompt, "n_ctx": n_ctx}
    if room < 0 or (wanted is None and room == 0):
        raise RequestError("context_too_long", f"the prompt has {n_prompt} tokens, the context holds {n_ctx}", **facts)
    if wanted is None:
        return room
    if wanted > room:
        message = f"the prompt's {n_prompt} tokens and max_tokens {wanted} are more than the context holds: {n_ctx}"
        raise RequestError("context_too_long", message, **facts, max_tokens=wanted)
    return wanted


def _sampling(params: dict[str, Any], seed: int) -> link.Sampling:
    n_logprobs = -1 if params["logprobs"] is None else params["logprobs"]
    return link.Sampling(seed=seed, n_logprobs=n_logprobs, **{name: params[name] for name in SAMPLING})
