"""Tape: a step of a model, recorded once.

Building a model appends calls; nothing runs per op from Python afterwards. One recording has four readings:
a device compiles and runs it (and captures it, where it can), `interpret` runs it in numpy as the oracle, and
`listing` prints it. Values carry names, so the first one that differs between two readings names the guilty op.

Data varies, arguments do not: inputs live in fixed buffers, and a ragged dimension has a bound and a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from luced.device import abi
from luced.device.values import Call, Rows, Storage, Value, aligned, make_value
from luced.oracle import ORACLE, view

Array = npt.NDArray[Any]
# Ops that a device may run in one launch when they follow each other: of the same rows, and of the same x.
LAUNCHED_TOGETHER = (frozenset({"rms_norm", "add", "glu", "quantize", "rope", "kv_write"}), frozenset({"matmul"}))
MAKES_ROWS = frozenset({"rms_norm", "glu", "quantize"})  # and so may those with the matmul that follows
MADE_TOGETHER = frozenset({("kv_write", "attention"), ("matmul", "glu")})


@dataclass
class Tape:
    calls: list[Call] = field(default_factory=list)
    kept: set[Storage] = field(default_factory=set)  # activations that outlive the step
    _made: dict[tuple[Storage, int], Value] = field(default_factory=dict)

    # ---- recording ----

    def claim(self, name: str, dtype: str, *ne: int, rows: Rows | None) -> Value:
        """A new activation."""
        return make_value(name, "activation", dtype, *ne, rows=rows)

    def result(self, name: str, dtype: str, *ne: int, rows: Rows | None) -> Value:
        """A small value that the host reads after the step."""
        return make_value(name, "output", dtype, *ne, rows=rows)

    def once(self, x: Value, make: Callable[[], Value]) -> Value:
        """What `make` derives from x, made at its first use: x quantised for several matmuls."""
        key = (x.storage, x.offset)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def append(self, op: str, rows: Rows | None, outs: Sequence[str], /, **args: Value | float | int | None) -> None:
        self.calls.append(Call(op, args, tuple(outs), rows))

    def keep(self, value: Value) -> Value:
        """The value can still be read after the step."""
        self.kept.add(value.storage)
        return value

    def storages(self, *kinds: str) -> list[Storage]:
        """Every storage of these kinds that the calls touch, in order of first use."""
        seen = dict.fromkeys(v.storage for call in self.calls for v in call.values())
        return [s for s in seen if s.kind in kinds]

    # ---- planning ----

    def plan_activations(self) -> tuple[dict[Storage, int], int]:
        """Offset of each activation in one arena, and the arena's bytes; places are reused once their value is dead.

        Not by calls that a device may run in one launch with its last: there each row is at its own pace.
        """
        first: dict[Storage, int] = {}
        last: dict[Storage, int] = {}
        ends = self._ends_of_launches()
        for i, call in enumerate(self.calls):
            for v in call.values():
                if v.storage.kind == "activation":
                    first.setdefault(v.storage, i)
                    last[v.storage] = len(self.calls) if v.storage in self.kept else ends[i]
        offsets: dict[Storage, int] = {}
        total = 0
        for s in sorted(first, key=lambda s: -s.n_bytes):  # large ones first: small ones fill the gaps
            others = [o for o in offsets if first[o] <= last[s] and first[s] <= last[o]]
            offset = 0
            for o in sorted(others, key=lambda o: offsets[o]):
                if offset + s.n_bytes <= offsets[o]:
                    break
                offset = max(offset, aligned(offsets[o] + o.n_bytes))
            offsets[s] = offset
            total = max(total, offset + aligned(s.n_bytes))
        return offsets, total

    def _ends_of_launches(self) -> list[int]:
        """For each call the last that may be in one launch with it."""
        ends = list(range(len(self.calls)))
        for i in reversed(range(len(self.calls) - 1)):
            op, following = self.calls[i].op, self.calls[i + 1].op
            joins = any({op, following} <= together for together in LAUNCHED_TOGETHER)
            prepares = following == "matmul" if op in MAKES_ROWS else (op, following) in MADE_TOGETHER
            if joins or prepares:
                ends[i] = ends[i + 1]
        return ends

    # ---- readings ----

    def interpret(self, memory: Callable[[Storage], Array]) -> dict[str, Array]:
        """Runs the calls in numpy: every named output, copied after its call.

        `memory` gives the bytes of inputs, constants and caches (caches are written). Weights are read as in the file.
        """
        held: dict[Storage, Array] = {}
        taps: dict[str, Array] = {}

        def array(value: Value) -> Array:
            if value.packed:
                assert value.storage.packs is not None
                return array(value.storage.packs)
            s = value.storage
            if s not in held:
                if s.kind == "weight":
                    held[s] = np.frombuffer(s.data, np.uint8)
                else:
                    held[s] = np.zeros(s.n_bytes, np.uint8) if s.kind == "activation" else memory(s)
            return view(held[s], value.offset, abi.Type[value.type], value.ne, value.nb)

        for call in self.calls:
            args = {k: array(v) if isinstance(v, Value) else v for k, v in call.args.items()}
            args["n_rows"] = int(array(call.rows.counter)[0]) if call.rows else None
            ORACLE[call.op](SimpleNamespace(**args))
            for out in call.outs:
                value = call.args[out]
                if isinstance(value, Value):
                    taps[value.name] = args[out].copy()  # type: ignore[union-attr]
        return taps

    def listing(self) -> str:
        """One line per call: `out = op(argument=value, ...)`."""
        lines = []
        for i, call in enumerate(self.calls):
            args = ", ".join(f"{k}={v}" for k, v in call.args.items() if k not in call.outs and v is not None)
            outs = ", ".join(str(call.args[k]) for k in call.outs if call.args[k] is not None)
            lines.append(f"{i:5} {outs} = {call.op}({args})")
        return "\n".join(lines)


def constant(name: str, values: Sequence[float]) -> Value:
    """F32 [len(values)], written once."""
    return make_value(name, "constant", "F32", len(values), data=np.asarray(values, np.float32).tobytes())
