"""The handlers of the protocol's methods, by name."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

import luced
from luce import api, messages
from luced.errors import ProtocolError, RequestError
from luced.front.answers import Answer
from luced.front.call import Call
from luced.front.embedding import Embedding
from luced.front.shelf import describe_models
from luced.front.texts import Text
from luced.gguf.catalogue import Entry

AT_ONCE = 4096  # tokens
STATE_S = 0.5  # to wait for the engine's word about its models

Handler = Callable[[Call], Awaitable[dict[str, Any]]]


async def hello(call: Call) -> dict[str, Any]:
    session, params = call.session, call.params
    if session.refusal is not None:
        raise session.refusal
    if session.greeted:
        raise ProtocolError("bad_frame", "hello was said before")
    if params["level"] < messages.COMPATIBLE:
        raise ProtocolError(
            "unsupported_level",
            f"the client speaks level {params['level']}, this daemon {messages.COMPATIBLE} to {messages.LEVEL}",
            compatible=messages.COMPATIBLE,
            level=messages.LEVEL,
        )
    session.greeted = True
    session.client = params["client"]
    if params["tenant"]:
        session.tenant = f"{session.peer.uid}/{params['tenant']}"
    return {
        "level": min(params["level"], messages.LEVEL),
        "version": luced.__version__,
        "instance": call.daemon.instance,
        "tenant": session.tenant,
        "role": session.role,
        "limits": {
            "frame_bytes": messages.MAX_FRAME_BYTES,
            "nesting": messages.MAX_NESTING,
            "items": messages.MAX_ITEMS,
            "requests": session.MAX_CALLS,
            **call.daemon.limits(),
        },
        "methods": sorted(session.methods),
    }


async def chat(call: Call) -> dict[str, Any]:
    entry = await _find(call)
    with call.daemon.residency.hold(entry, call.params["keep_alive"]) as resident:  # it loads while the prompt is made
        text = await call.daemon.texts.of(entry, call.session)
        prompt = await text.chat(call.params["messages"])
        return await Answer(call, resident, text, prompt, in_chat=True).run()


async def complete(call: Call) -> dict[str, Any]:
    entry = await _find(call)
    with call.daemon.residency.hold(entry, call.params["keep_alive"]) as resident:
        text = await call.daemon.texts.of(entry, call.session)
        prompt = await text.prompt(call.params["prompt"])
        return await Answer(call, resident, text, prompt).run()


async def infill(call: Call) -> dict[str, Any]:
    entry, params = await _find(call), call.params
    with call.daemon.residency.hold(entry, params["keep_alive"]) as resident:
        text = await call.daemon.texts.of(entry, call.session)
        prompt = await text.infill(params["prefix"], params["suffix"], params["extra"], params["filename"])
        if text.has_fim:
            return await Answer(call, resident, text, prompt).run()
        degraded = [f"{entry.name} has no tokens for text with a hole: it was asked through its chat template"]
        return await Answer(call, resident, text, prompt, degraded, in_chat=True).run()


async def embed(call: Call) -> dict[str, Any]:
    entry = await _find(call)
    with call.daemon.residency.hold(entry, call.params["keep_alive"]) as resident:
        return await Embedding(call, resident, await call.daemon.texts.of(entry, call.session)).run()


async def tokenize(call: Call) -> dict[str, Any]:
    text, params = await _text(call), call.params
    (tokens,) = await text.encode([params["text"]], special=params["special"], bos=params["bos"])
    if not params["pieces"]:
        return {"tokens": tokens}
    pieces: list[bytes] = []
    for begin in range(0, len(tokens), AT_ONCE):
        pieces += map(text.pieces.token_bytes, tokens[begin : begin + AT_ONCE])
        await trio.lowlevel.checkpoint()  # others shall not wait for all of them
    return {"tokens": tokens, "pieces": pieces}


async def detokenize(call: Call) -> dict[str, Any]:
    text = await _text(call)
    return {"text": await text.decode(call.params["tokens"], special=call.params["special"])}


async def template(call: Call) -> dict[str, Any]:
    text = await _text(call)
    prompt = await text.chat(call.params["messages"], with_text=True)
    return {"prompt": prompt.text, "tokens": prompt.tokens}


async def models(call: Call) -> dict[str, Any]:
    daemon = call.daemon
    rows = await trio.to_thread.run_sync(describe_models, daemon.catalogue, daemon.config)
    if call.session.role == "inference":  # where files lie is not its business
        hidden = "it cannot be used"
        rows = [row | {"path": "", "settings": {}, "problem": row["problem"] and hidden} for row in rows]
    return {"models": [row | {"state": daemon.residency.state(row["name"])} for row in rows]}


async def load(call: Call) -> dict[str, Any]:
    params = call.params
    began_at = time.monotonic()
    with call.daemon.residency.hold(
        await _find(call), params["keep_alive"], params["n_ctx"], params["kv_type"]
    ) as resident:
        await call.daemon.residency.loaded(resident, call.tell_loading)
    return {"model": resident.describe(), "load_s": time.monotonic() - began_at}


async def unload(call: Call) -> dict[str, Any]:
    residency, name = call.daemon.residency, call.params["model"]
    if name not in residency.residents:  # else its file may be gone
        name = (await _find(call)).name
    return {"unloaded": await residency.unload(name, call.params["force"])}


async def status(call: Call) -> dict[str, Any]:
    daemon = call.daemon
    state = await daemon.supervisor.ask_state(STATE_S)
    caches = {model["model"]: describe_cache(model) for model in state["models"]} if state else {}
    return {
        "version": luced.__version__,
        "instance": daemon.instance,
        "pid": os.getpid(),
        "uptime_s": time.monotonic() - daemon.started_at,
        "socket": daemon.listener.describe(),
        "inference_socket": daemon.inference.describe() if daemon.inference else None,
        "engine": daemon.supervisor.describe(),
        "models": [model | {"cache": caches.get(model["name"])} for model in daemon.residency.describe()],
        "requests": [answer.describe() for answer in daemon.answers if call.session.may_see(answer.call.session)],
    }


async def subscribe(call: Call) -> dict[str, Any]:
    topics = call.params["topics"]
    with call.daemon.events.subscribed(call, topics) as events:
        await call.notify("event", topic="", event="subscribed", at=time.time(), facts={"topics": topics})
        while True:
            await call.notify("event", **vars(await events.receive()))


async def cancel(call: Call) -> dict[str, Any]:
    other = call.session.calls.get(call.params["id"])
    if other is None or other is call or other.has_ended:
        return {"cancelled": False}
    other.end(RequestError("cancelled", "the request was cancelled"))
    return {"cancelled": True}


async def describe_api(call: Call) -> dict[str, Any]:
    return {"api": api.describe()}


HANDLERS: dict[str, Handler] = {
    "hello": hello,
    "chat": chat,
    "complete": complete,
    "infill": infill,
    "embed": embed,
    "tokenize": tokenize,
    "detokenize": detokenize,
    "template": template,
    "models": models,
    "load": load,
    "unload": unload,
    "status": status,
    "subscribe": subscribe,
    "cancel": cancel,
    "api": describe_api,
}
assert HANDLERS.keys() == messages.BY_NAME.keys()


async def _find(call: Call) -> Entry:
    name = call.params["model"] or call.daemon.config.default_model
    may_open_files = call.session.role == "operator"  # the daemon may read files that the caller may not
    if name.startswith(("/", ".")) and not may_open_files:
        who = call.daemon.who_may("operator")
        raise RequestError("not_permitted", f"to name a model by its path is for {who}", "use the model's name")
    return await trio.to_thread.run_sync(call.daemon.catalogue.find, name, may_open_files)


async def _text(call: Call) -> Text:
    return await call.daemon.texts.of(await _find(call), call.session)


def describe_cache(state: dict[str, Any]) -> dict[str, int]:
    """The map Cache of a model's state, as the engine gives it."""
    pages = state["pages"].values()
    total, free, cached = (sum(group[key] for group in pages) for key in ("total", "free", "cached"))
    return {
        "pages": total,
        "used": total - free - cached,
        "cached": cached,
        "steps": state["n_steps"],
        "rows": state["n_rows"],
        "cached_tokens": state["n_cached"],
        "preempted": state["n_preempted"],
        "evicted": state["n_evicted"],
    }
