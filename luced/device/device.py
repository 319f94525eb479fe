"""What every device is to the engine: it takes memory, fills it with weights, and runs compiled tapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from luced.device import abi
from luced.device.values import Call, Storage, Value


class Program(Protocol):
    """A compiled tape. Its runs, and those of all programs of a device, are one after the other."""

    def start(self) -> None:
        """Begins a run, with the inputs as they are: they may be written anew at once. At most two are not read.

        ModelError: a kernel does not support what it was given. EngineError: the device failed.
        """

    def read(self) -> list[npt.NDArray[Any]]:
        """Waits for the first run that was not read: its outputs, which stay until another begins.

        EngineError: the device failed.
        """

    def run(self) -> list[npt.NDArray[Any]]:
        """start() and read()."""

    def take_fault(self) -> abi.FaultCode:
        """The first fault of a run since it was last taken, and clears it."""


class Device(Protocol):
    """Memory that it gives is freed when nobody holds it."""

    name: str  # cpu, or cuda:0
    device_name: str
    isa: str
    n_threads: int
    runs_ahead: bool  # a step should be begun before the last one is read: the host works meanwhile

    def free_bytes(self) -> int:
        """Memory that can still be had."""

    def allocate(self, storages: list[Storage], offsets: list[int] | None = None, grows: bool = False) -> Any:
        """Zeroed memory for these storages, side by side or at `offsets`; writes the constants. Hold what it gives.

        grows: it is used little by little, as a cache is.
        """

    def bind(self, storage: Storage) -> Iterator[int]:
        """Makes a weight readable as it is in the file, slice by slice; yields the bytes of each."""

    def view(self, value: Value) -> npt.NDArray[Any]:
        """An input or `host` storage as an array, shape in reverse ggml order."""

    def write(self, value: Value, row: int, data: bytes) -> None:
        """The beginning of a row of a table or output, after what has begun and before what has not."""

    def packed_bytes(self, value: Value) -> int:
        """Bytes of a weight in the device's own form; 0: it is read best as it is."""

    def pack(self, packed: Storage, row_begin: int, row_end: int) -> None:
        """Packs rows of the weight that `packed` is made from."""

    def workspace_bytes(self, calls: list[Call]) -> int:
        """What compile() takes for their workspace; they need not have memory yet."""

    def compile(self, calls: list[Call], outputs: Sequence[Value] = ()) -> Program:
        """The calls with the addresses of their storages, which must be allocated, and a workspace of their own.

        outputs: activations and outputs that read() gives.
        """

    def close(self) -> None: ...


DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4"}


def array(value: Value, memory: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """The value in its storage's bytes; the bytes themselves, where numpy lacks the type."""
    if value.type not in DTYPES:
        return memory
    return np.ndarray(value.ne[::-1], DTYPES[value.type], memory, value.offset, value.nb[::-1])
