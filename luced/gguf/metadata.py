"""The metadata of a GGUF file: a mapping that knows which keys were read, with typed access."""

from __future__ import annotations

import builtins
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from luced.errors import ModelError

T = TypeVar("T")

# Value types of GGUF by id: (kind, struct code).
STRING = 8
ARRAY = 9
SCALARS = {
    0: ("int", "B"),
    1: ("int", "b"),
    2: ("int", "H"),
    3: ("int", "h"),
    4: ("int", "I"),
    5: ("int", "i"),
    6: ("float", "f"),
    7: ("bool", "B"),
    10: ("int", "Q"),
    11: ("int", "q"),
    12: ("float", "d"),
}


def bad_file(path: Path, why: str, offset: int | None = None, **names: str) -> ModelError:
    """The error that this file is wrong; `names` is tensor=… or key=…, `offset` the byte where it shows."""
    thing = "".join(f" {kind} {name!r}:" for kind, name in names.items())
    place = "" if offset is None else f" (at byte {offset})"
    facts: dict[str, Any] = {"file": str(path), **names}
    if offset is not None:
        facts["offset"] = offset
    return ModelError("bad_model_file", f"{path}:{thing} {why}{place}", **facts)


@dataclass(frozen=True)
class Array:
    """An array as it lies in the file, bounds checked: n values of one type, the first at `offset` of `data`."""

    path: Path
    key: str
    type: int
    n: int
    offset: int
    data: bytearray

    @property
    def kind(self) -> str:
        return "str" if self.type == STRING else SCALARS[self.type][0]

    def read(self) -> list[Any]:
        """The values. ModelError: a string is no UTF-8, a bool neither 0 nor 1."""
        if self.type == STRING:
            return self._read_strings()
        values = list(struct.unpack_from(f"<{self.n}{SCALARS[self.type][1]}", self.data, self.offset))
        if self.kind != "bool":
            return values
        for i, value in enumerate(values):
            if value > 1:
                raise bad_file(self.path, f"bool {i} is {value}", self.offset + i, key=self.key)
        return [value == 1 for value in values]

    def _read_strings(self) -> list[Any]:
        unpack = struct.Struct("<Q").unpack_from
        data, at, strings = self.data, self.offset, []
        for i in range(self.n):
            (n_bytes,) = unpack(data, at)
            begin = at + 8
            at = begin + n_bytes
            try:
                strings.append(str(data[begin:at], "utf-8"))
            except UnicodeDecodeError as error:
                raise bad_file(self.path, f"string {i} is not UTF-8", begin + error.start, key=self.key) from None
        return strings


class Metadata(Mapping[str, Any]):
    """Keys to values (int, float, bool, str or a list of one of these). Arrays are decoded when first asked for,
    while the file is open. Every way to get a value marks its key as read."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._path = path
        self._values = values
        self._read: set[str] = set()

    def __getitem__(self, key: builtins.str) -> Any:
        value = self._values[key]
        if isinstance(value, Array):
            value = self._values[key] = value.read()
        self._read.add(key)
        return value

    def __contains__(self, key: object) -> builtins.bool:
        return key in self._values

    def __iter__(self) -> Iterator[builtins.str]:
        return iter(self._values)

    def __len__(self) -> builtins.int:
        return len(self._values)

    def bad(self, why: builtins.str) -> ModelError:
        """The error that this metadata contradicts itself."""
        return bad_file(self._path, why)

    def unread(self, prefix: builtins.str) -> list[builtins.str]:
        """Keys under `prefix` that nobody has read."""
        return [key for key in self._values if key.startswith(prefix) and key not in self._read]

    # Each of these raises ModelError if the value is of another type, or is missing and `default` is None.

    def int(self, key: builtins.str, default: builtins.int | None = None) -> builtins.int:
        return self._scalar(key, builtins.int, default)

    def float(self, key: builtins.str, default: builtins.float | None = None) -> builtins.float:
        value = self._scalar(key, builtins.float, default)
        if not math.isfinite(value):
            raise bad_file(self._path, f"is {value}", key=key)
        return value

    def str(self, key: builtins.str, default: builtins.str | None = None) -> builtins.str:
        return self._scalar(key, builtins.str, default)

    def bool(self, key: builtins.str, default: builtins.bool | None = None) -> builtins.bool:
        return self._scalar(key, builtins.bool, default)

    def ints(
        self, key: builtins.str, n: builtins.int | None = None, default: builtins.int | None = None
    ) -> list[builtins.int]:
        """`n` integers (None: as many as there are); a scalar stands for n equal ones."""
        return self._list(key, builtins.int, n, default)

    def count(self, key: builtins.str, default: builtins.int | None = None) -> builtins.int:
        """An integer that is not negative."""
        return self._check_counts(key, [self.int(key, default)])[0]

    def counts(
        self, key: builtins.str, n: builtins.int | None = None, default: builtins.int | None = None
    ) -> list[builtins.int]:
        """Integers that are not negative."""
        return self._check_counts(key, self.ints(key, n, default))

    def floats(self, key: builtins.str, n: builtins.int | None = None) -> list[builtins.float]:
        return self._list(key, builtins.float, n, None)

    def bools(self, key: builtins.str, n: builtins.int | None = None) -> list[builtins.bool]:
        return self._list(key, builtins.bool, n, None)

    def strs(self, key: builtins.str, n: builtins.int | None = None) -> list[builtins.str]:
        return self._list(key, builtins.str, n, None)

    def _scalar(self, key: builtins.str, kind: type[T], default: T | None) -> T:
        value = self._get(key, default)
        if type(value) is not kind:
            raise bad_file(self._path, f"must be {kind.__name__}, not {_describe(value)}", key=key)
        return value

    def _list(self, key: builtins.str, kind: type[T], n: builtins.int | None, default: T | None) -> list[T]:
        value = self._get(key, default)
        values: list[T] = value if isinstance(value, list) else [value] * (1 if n is None else n)
        if values and type(values[0]) is not kind:
            raise bad_file(self._path, f"must be a list of {kind.__name__}, not {_describe(value)}", key=key)
        if n is not None and len(values) != n:
            raise bad_file(self._path, f"must have {n} values, has {len(values)}", key=key)
        return values

    def _check_counts(self, key: builtins.str, values: list[builtins.int]) -> list[builtins.int]:
        if (least := min(values, default=0)) < 0:
            raise bad_file(self._path, f"is {least}, which is negative", key=key)
        return values

    def _get(self, key: builtins.str, default: Any) -> Any:
        if key in self._values:
            return self[key]
        if default is None:
            raise bad_file(self._path, "is missing", key=key)
        return default


def _describe(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {type(value[0]).__name__}" if value else "an empty list"
    return type(value).__name__
