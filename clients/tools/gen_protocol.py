"""Writes docs/protocol.md and tests/vectors/wire.json from the protocol's table: python clients/tools/gen_protocol.py

With --check it writes nothing, and fails if one of them is not as it would write it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgpack

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))

from luce import messages, wire  # noqa: E402
from luce.errors import CODES, LuceError  # noqa: E402
from luce.fields import Field, Method  # noqa: E402
from luce.structs import TYPES  # noqa: E402

TEXT = Path(__file__).with_name("protocol.md.in")
DOCUMENT = ROOT / "docs" / "protocol.md"
VECTORS = ROOT / "tests" / "vectors" / "wire.json"

ANSWER = {
    "model": "smollm2-135m-instruct",
    "choices": [{"index": 0, "text": "Hi.", "finish": "stop", "tokens": [26843, 30]}],
    "usage": {"prompt": 31, "cached": 30, "generated": 3, "drafted": 0, "accepted": 0},
    "timings": {
        "queue_s": 0.0,
        "load_s": 0.0,
        "restart_s": 0.0,
        "prefill_s": 0.0625,
        "decode_s": 0.125,
        "total_s": 0.25,
    },
    "seed": 7,
    "degraded": [],
}
HELLO = {
    "level": messages.LEVEL,
    "version": "0.1.0",
    "instance": "5f3a9c",
    "tenant": "1000",
    "role": "operator",
    "limits": {
        "frame_bytes": messages.MAX_FRAME_BYTES,
        "nesting": messages.MAX_NESTING,
        "items": messages.MAX_ITEMS,
        "requests": 512,
        "connections": 1024,
        "connections_of_user": 768,
        "queue": 1024,
        "queue_of_user": 512,
    },
    "methods": sorted(messages.BY_NAME),
}
BUSY = LuceError(
    "busy",
    "512 requests of uid 1000 are waiting",
    {"limit": "queue_of_user", "value": 512, "retry_after_s": 1.5},
).to_wire()
TOO_LATE = LuceError(
    "deadline",
    "chat was not done in 2 s",
    {"deadline_s": 2.0, "phase": "decode", "prompt": 31, "generated": 5},
).to_wire()
DENIED = LuceError(
    "not_permitted",
    "subscribe is for who connects to /run/luce/luced.sock",
    {"role": "inference", "needed": "user"},
).to_wire()
BROKEN = LuceError("bad_frame", "an array of 3 that begins with 0 is no request, response or notification").to_wire()
SUBSCRIBED = {"id": 4, "topic": "", "event": "subscribed", "at": 1790000000.25, "facts": {"topics": ["models"]}}
LOADED = {
    "id": 4,
    "topic": "models",
    "event": "loaded",
    "at": 1790000001.5,
    "facts": {"model": "smollm2-135m-instruct", "memory": {"weights": 98000000}, "context": 8192, "load_s": 0.5},
}
CANCELLED = LuceError("cancelled", "the request was cancelled").to_wire()
EXAMPLES: dict[str, bytes] = {
    "hello": wire.request(1, "hello", {"level": 1, "client": "demo"}),
    "hello answered": wire.response(1, None, HELLO),
    "chat": wire.request(2, "chat", {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0.5}),
    "progress": wire.notification("progress", {"id": 2, "phase": "prefill", "done": 30, "total": 31, "cached": 30}),
    "text": wire.notification("text", {"id": 2, "choice": 0, "text": "Hi", "tokens": [26843]}),
    "chat answered": wire.response(2, None, ANSWER),
    "cancel": wire.request(3, "cancel", {"id": 2}),
    "chat cancelled": wire.response(2, CANCELLED, None),
    "cancel answered": wire.response(3, None, {"cancelled": True}),
    "queue": wire.notification("progress", {"id": 2, "phase": "queue", "done": 3, "total": 0}),
    "busy": wire.response(2, BUSY, None),
    "deadline": wire.response(2, TOO_LATE, None),
    "not permitted": wire.response(4, DENIED, None),
    "broken": wire.response(0, BROKEN, None),
    "subscribe": wire.request(4, "subscribe", {"topics": ["models"]}),
    "subscribed": wire.notification("event", SUBSCRIBED),
    "event": wire.notification("event", LOADED),
    "cancel of a subscription": wire.request(5, "cancel", {"id": 4}),
    "subscription cancelled": wire.response(4, CANCELLED, None),
}


def document() -> str:
    parts = {
        "level": str(messages.LEVEL),
        "compatible": str(messages.COMPATIBLE),
        "frame_bytes": f"{messages.MAX_FRAME_BYTES:,}".replace(",", " "),
        "nesting": str(messages.MAX_NESTING),
        "items": f"{messages.MAX_ITEMS:,}".replace(",", " "),
        "sampling": _params(messages.SAMPLING),
        "methods": "\n".join(_method(m) for m in messages.METHODS),
        "notifications": "\n".join(f"### {n.name}\n\n{n.doc}\n\n{_fields(n.fields)}" for n in messages.NOTIFICATIONS),
        "types": "\n".join(f"### {t.name}\n\n{t.doc}\n\n{_fields(t.fields)}" for t in TYPES),
        "errors": _table(
            ["code", "name", "who must act", "what to do"], [[str(c.number), c.name, c.actor, c.remedy] for c in CODES]
        ),
    }
    for name, data in EXAMPLES.items():
        parts[f"bytes {name}"] = f"```\n{annotate(data)}\n```"
        parts[f"hex {name}"] = f"```\n{data.hex(' ')}\n```"
    text = TEXT.read_text()
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    assert "{{" not in text, text[text.index("{{") :][:40]
    return text


def _method(m: Method) -> str:
    parts = [f"### {m.name}", f"{m.doc} Role: *{m.role}*."]
    if m.notifications:
        parts.append(f"While it runs the daemon sends {' and '.join(f'`{n}`' for n in m.notifications)}.")
    own = tuple(f for f in m.params if f not in messages.SAMPLING)
    parts += [f"Parameters:\n\n{_params(own)}"] if own else ["No parameters.\n"]
    if own != m.params:
        parts.append("And the [sampling parameters](#sampling-parameters).\n")
    parts.append(f"Result:\n\n{_fields(m.result)}" if m.result else "No result: it ends with an error.\n")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _params(fields: tuple[Field, ...]) -> str:
    rows = [[f"`{f.name}`", f"`{f.type}`", _default(f), f.doc + _range(f)] for f in fields]
    return _table(["name", "type", "default", "meaning"], rows)


def _fields(fields: tuple[Field, ...]) -> str:
    rows = [[f"`{f.name}`", f"`{f.type}`", f.doc + _range(f) + _absent(f)] for f in fields]
    return _table(["name", "type", "meaning"], rows)


def _default(f: Field) -> str:
    if f.required:
        return "must be given"
    return "none" if f.default is None else f"`{json.dumps(f.default)}`"


def _absent(f: Field) -> str:
    if f.required:
        return ""
    return " May be absent." if f.default is None else f" Absent: `{json.dumps(f.default)}`."


def _range(f: Field) -> str:
    if f.choices:
        return f" One of {', '.join(f'`{choice}`' for choice in f.choices)}."
    if f.low is None and f.high is None:
        return ""
    if f.type == "str":
        return f" At most {f.high} characters."
    if f.type.startswith(("list", "map")):
        return f" At most {f.high}."
    return f" At least {f.low}." if f.high is None else f" {f.low} to {f.high}."


def _table(head: list[str], rows: list[list[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *cells]) + "\n"


def annotate(data: bytes) -> str:
    """One line for each MessagePack item: its bytes, indented by depth, and what it is."""
    lines = _annotate(msgpack.unpackb(data), 0)
    width = max(len(line) for line, _ in lines) + 2
    return "\n".join(f"{line:{width}}{meaning}" for line, meaning in lines)


def _annotate(value: Any, depth: int) -> list[tuple[str, str]]:
    indent = "   " * depth
    if isinstance(value, list):
        head = indent + msgpack.Packer().pack_array_header(len(value)).hex()
        return [(head, f"array of {len(value)}"), *(line for item in value for line in _annotate(item, depth + 1))]
    if isinstance(value, dict):
        head = indent + msgpack.Packer().pack_map_header(len(value)).hex()
        pairs = [[*_annotate(key, depth + 1), *_annotate(item, depth + 2)] for key, item in value.items()]
        return [(head, f"map of {len(value)}"), *(line for pair in pairs for line in pair)]
    return [(indent + msgpack.packb(value).hex(" "), "nil" if value is None else json.dumps(value))]


def vectors() -> str:
    """Each example: its bytes, and what they say."""
    rows = [{"name": name, "hex": data.hex(), "message": msgpack.unpackb(data)} for name, data in EXAMPLES.items()]
    return json.dumps(rows, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for path, text in ((DOCUMENT, document()), (VECTORS, vectors())):
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} is not current: run python clients/tools/gen_protocol.py")


if __name__ == "__main__":
    main()
