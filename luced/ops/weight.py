"""What the ops share: weights, quantised activations, the check of shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luced.device.values import BLOCKS, ShapeError, Value
from luced.tape import Tape

FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Weight:
    """A tensor of the model: `rows` reads it as in the file, `packed` as the device's kernels like it best."""

    rows: Value
    packed: Value

    @property
    def name(self) -> str:
        return self.rows.name.removesuffix(".weight")

    @property
    def ne(self) -> tuple[int, ...]:
        return self.rows.ne

    def part(self, name: str, begin: int, n: int) -> Weight:
        """Rows [begin, begin + n) of each matrix of a stack [K, N, ...], which is never packed."""
        r = self.rows
        rows = replace(r, name=name, ne=(r.ne[0], n, *r.ne[2:]), offset=r.offset + begin * r.nb[1])
        return Weight(rows, rows)


def for_weight(t: Tape, weight: Weight, x: Value) -> Value:
    """x as this weight meets it: as it is, or quantised, once for all weights that do."""
    if weight.rows.type in FLOAT_TYPES:
        return x
    return t.once(x, lambda: _quantize(t, x))


def _quantize(t: Tape, x: Value) -> Value:
    check(x.ne[0] % BLOCKS["Q8_A"][0] == 0, "quantize", x)
    out = t.claim(x.name + ".q8", "Q8_A", *x.ne, rows=x.rows)
    t.append("quantize", x.rows, ["out"], x=x, out=out)
    return out


def check(fits: bool, op: str, *values: Value | None) -> None:
    if not fits:
        raise ShapeError(f"{op}: shapes do not fit: {', '.join(map(str, values))}")
