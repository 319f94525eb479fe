"""The tensors of a model file as weights of a tape; which of them were used, and in what form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from luced.device.values import Storage, Value, strides
from luced.gguf.header import TensorInfo
from luced.gguf.metadata import bad_file
from luced.gguf.reader import File
from luced.ops import Weight


class Weights:
    """Weights by GGUF name. `packed_bytes` is the device's: bytes of a weight in its own form, 0: as in the file."""

    def __init__(self, file: File, packed_bytes: Callable[[Value], int]) -> None:
        self.file = file
        self._packed_bytes = packed_bytes
        self._made: dict[str, Weight] = {}

    def __getitem__(self, name: str) -> Weight:
        """ModelError: the file has no such tensor."""
        if name not in self._made:
            self._made[name] = self._make(self._info(name))
        return self._made[name]

    def row(self, name: str) -> Weight:
        """A vector [K] as a matrix [K, 1]. ModelError: the file has no such tensor."""
        if name not in self._made:
            info = self._info(name)
            self._made[name] = self._make(replace(info, dims=(*info.dims, 1)[:2]))
        return self._made[name]

    def get(self, name: str) -> Weight | None:
        return self[name] if name in self.file.tensors else None

    def block(self, i: int) -> Block:
        return Block(self, f"blk.{i}.")

    def keep(self, i: int, needed: tuple[str, ...]) -> None:
        """Makes all weights of block i, which no tape here reads. ModelError: it lacks one of `needed`."""
        for name in (*(f"blk.{i}.{name}" for name in needed), *self.file.tensors):
            if name.startswith(f"blk.{i}."):
                self[name]

    def floats(self, name: str) -> list[float] | None:
        """The values of a small F32 tensor, None where it is missing."""
        weight = self.get(name)
        if weight is None:
            return None
        if weight.rows.type != "F32":
            raise bad_file(self.file.path, f"must be F32, not {weight.rows.type}", tensor=name)
        return list(weight.rows.storage.data.cast("f"))

    def unused(self) -> list[str]:
        """NVFP4's input_scale is for products of two FP4 numbers: our activations have 8 bits."""
        return [name for name in self.file.tensors if name not in self._made and not name.endswith(".input_scale")]

    def n_bytes(self) -> int:
        """Of all tensors, each in the form that is computed with. ModelError: a type that the device does not know."""
        return sum(self._make(info).packed.storage.n_bytes for info in self.file.tensors.values())

    def _info(self, name: str) -> TensorInfo:
        if name not in self.file.tensors:
            raise bad_file(self.file.path, "is missing", tensor=name)
        return self.file.tensors[name]

    def _make(self, info: TensorInfo) -> Weight:
        storage = Storage(info.name, "weight", info.n_bytes, self.file.view(info))
        rows = Value(info.name, storage, info.type, info.dims, strides(info.type, info.dims))
        n_bytes = self._packed_bytes(rows) if len(info.dims) == 2 and info.type != "I32" else 0
        if not n_bytes:
            return Weight(rows, rows)
        packed = Storage(info.name, "weight", n_bytes, packs=rows)
        return Weight(rows, Value(info.name, packed, info.type, info.dims, rows.nb, packed=True))


class Block:
    """The weights of one layer, by their name within it."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self._weights = weights
        self._prefix = prefix

    def __getitem__(self, name: str) -> Weight:
        return self._weights[self._prefix + name]

    def get(self, name: str) -> Weight | None:
        return self._weights.get(self._prefix + name)

    def row(self, name: str) -> Weight:
        return self._weights.row(self._prefix + name)

    def floats(self, name: str) -> list[float] | None:
        return self._weights.floats(self._prefix + name)

    def ignore(self, *names: str) -> None:
        """These are of no use, and may be there."""
        for name in names:
            self.get(name)
