"""What a fuzzer's bytes decide: numbers, texts, any value that a frame can carry. After their end all is 0 or empty."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from luce import wire
from luce.errors import LuceError

T = TypeVar("T")

MAX_ERROR_BYTES = 4000  # on the wire, whatever it is about
NUMBERS = (0, 1, 2, 7, 31, 32, 255, 1 << 15, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 60, 1 << 63, (1 << 64) - 1)
FLOATS = (0.0, -0.0, 0.5, 1.0, 1e-45, 1e300, -1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "a",
    "\0",
    "é",
    "👩🏽\u200d💻",
    "\ud7ff\ue000\U0010ffff",
    "x" * 3000,
    "1h",
    "nan",
    "١",
    "<|im_end|>",
    "../..",
)


class Choices:
    """Reads `data` from its start; each method says how much it takes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def are_left(self) -> bool:
        return self._at < len(self._data)

    def take(self, n: int) -> bytes:
        taken = self._data[self._at : self._at + n]
        self._at += n
        return taken

    def rest(self) -> bytes:
        return self.take(max(0, len(self._data) - self._at))

    def below(self, n: int) -> int:
        """0 to n - 1, of as many bytes as n needs."""
        return int.from_bytes(self.take((n.bit_length() + 7) // 8), "big") % n

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def flag(self) -> bool:
        return bool(self.below(2))

    def blob(self) -> bytes:
        """Up to 255 bytes."""
        return self.take(self.below(256))

    def text(self) -> str:
        """One of those that programs stumble over, or up to 255 bytes of UTF-8."""
        return self.blob().decode(errors="replace") if self.flag() else self.pick(TEXTS)

    def number(self) -> int:
        """Of 64 bits, with or without a sign."""
        n = self.pick(NUMBERS) if self.flag() else int.from_bytes(self.take(8), "big")
        return -n if self.flag() and n <= 1 << 63 else n

    def float(self) -> float:
        return self.pick(FLOATS) if self.flag() else struct.unpack("d", self.take(8).ljust(8, b"\0"))[0]

    def value(self, depth: int = 4) -> Any:
        """Anything that MessagePack has, with maps of texts."""
        match self.below(8 if depth else 6):
            case 0:
                return None
            case 1:
                return self.flag()
            case 2:
                return self.number()
            case 3:
                return self.float()
            case 4:
                return self.text()
            case 5:
                return self.blob()
            case 6:
                return [self.value(depth - 1) for _ in range(self.below(5))]
            case _:
                return {self.text(): self.value(depth - 1) for _ in range(self.below(5))}


@contextmanager
def typed(*names: str) -> Iterator[None]:
    """What is done here ends well, or with one of these errors, which the wire can carry and a person can read."""
    try:
        yield
    except LuceError as error:
        if error.name not in names:
            raise
        if (n_bytes := len(wire.response(0, error.to_wire(), None))) > MAX_ERROR_BYTES:
            raise ValueError(f"{error.name} takes {n_bytes} bytes") from None
