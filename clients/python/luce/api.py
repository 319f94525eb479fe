"""The protocol's table as plain data: what the method `api` answers, and what docs/protocol.md is made from."""

from __future__ import annotations

from typing import Any

from .errors import CODES
from .fields import Field
from .messages import COMPATIBLE, LEVEL, MAX_FRAME_BYTES, MAX_ITEMS, MAX_NESTING, METHODS, NOTIFICATIONS
from .structs import TYPES


def describe() -> dict[str, Any]:
    return {
        "level": LEVEL,
        "compatible": COMPATIBLE,
        "limits": {"frame_bytes": MAX_FRAME_BYTES, "nesting": MAX_NESTING, "items": MAX_ITEMS},
        "methods": [
            {
                "name": method.name,
                "doc": method.doc,
                "params": [_field(f) for f in method.params],
                "result": [_field(f) for f in method.result],
                "notifications": list(method.notifications),
                "role": method.role,
                "computes": method.computes,
            }
            for method in METHODS
        ],
        "notifications": [
            {"name": n.name, "doc": n.doc, "fields": [_field(f) for f in n.fields]} for n in NOTIFICATIONS
        ],
        "types": [{"name": t.name, "doc": t.doc, "fields": [_field(f) for f in t.fields]} for t in TYPES],
        "errors": [{"code": c.number, "name": c.name, "actor": c.actor, "remedy": c.remedy} for c in CODES],
    }


def _field(f: Field) -> dict[str, Any]:
    """`default` is there only where the field may be left out."""
    described: dict[str, Any] = {"name": f.name, "type": f.type, "doc": f.doc, "required": f.required}
    if not f.required:
        described["default"] = f.default
    described |= {key: value for key, value in (("low", f.low), ("high", f.high)) if value is not None}
    if f.choices:
        described["choices"] = list(f.choices)
    return described
