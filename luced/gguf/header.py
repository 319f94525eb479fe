"""The header of one GGUF file (versions 2 and 3, little-endian), all of it checked: metadata and tensor directory.
Source: the GGUF specification in the ggml repository."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from luced.errors import ModelError
from luced.gguf import formats
from luced.gguf.metadata import ARRAY, SCALARS, STRING, Array, bad_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 64  # of a tensor
MIN_ENTRY_BYTES = 13  # of metadata: length of an empty key, type, one byte
MIN_TENSOR_BYTES = 32  # length of an empty name, n_dims, one dim, type, offset
READ_BYTES = 1 << 20  # at once
MAX_HEADER_BYTES = 1 << 28  # it is read into memory; those of the largest vocabularies have 20 MB

# What others read from these must be of this kind; "[…]": an array.
KINDS = {
    "general.architecture": "str",
    "general.name": "str",
    "general.alignment": "int",
    "general.file_type": "int",
    "split.no": "int",
    "split.count": "int",
    "split.tensors.count": "int",
    "tokenizer.ggml.model": "str",
    "tokenizer.ggml.pre": "str",
    "tokenizer.ggml.tokens": "[str]",
    "tokenizer.ggml.scores": "[float]",
    "tokenizer.ggml.token_type": "[int]",
    "tokenizer.ggml.merges": "[str]",
    "tokenizer.ggml.bos_token_id": "int",
    "tokenizer.ggml.eos_token_id": "int",
    "tokenizer.chat_template": "str",
}

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {type_id: struct.Struct("<" + code) for type_id, (_, code) in SCALARS.items()}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the directory. `dims` in ggml order: dims[0] is contiguous. `offset` counts from the start of
    file number `part`."""

    name: str
    type: str
    dims: tuple[int, ...]
    offset: int
    n_bytes: int
    part: int = 0


@dataclass
class Part:
    """One file on disk, mapped and parsed. The header was read, so that who needs no more is not hurt where somebody
    cuts the file; to touch `data` then is SIGBUS."""

    path: Path
    mapping: mmap.mmap
    data: memoryview
    values: dict[str, Any]
    tensors: dict[str, TensorInfo]

    def close(self) -> None:
        self.data.release()
        # Views that others still hold keep the mapping alive; it goes with the last of them.
        with suppress(BufferError):
            self.mapping.close()


def open_part(path: Path, number: int) -> Part:
    try:
        # Without O_NONBLOCK a FIFO with no writer would hang here.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise bad_file(path, f"cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise bad_file(path, "is not a regular file")
        if status.st_size < 24:
            raise bad_file(path, f"has {status.st_size} bytes, too few for a GGUF header", 0)
        mapping = _map(path, fd)
        part = Part(path, mapping, memoryview(mapping), {}, {})
        try:
            _Parser(part, number, fd).parse()
        except BaseException:
            part.close()
            raise
        return part
    finally:
        os.close(fd)


def _map(path: Path, fd: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        what = f"{path} cannot be mapped into memory: {error.strerror}"
        raise ModelError("no_memory", what, "allow more address space (ulimit -v), or use a smaller model") from None


class _Parser:
    """Reads one part from its start; `at` is the byte it has come to, `size` where the file ends, and `data` what was
    read of it so far."""

    def __init__(self, part: Part, number: int, fd: int) -> None:
        self.part = part
        self.path = part.path
        self.size = len(part.data)
        self.data = bytearray()
        self.number = number
        self.at = 0
        self._fd = fd

    def parse(self) -> None:
        n_tensors, n_entries = self.header()
        for i in range(n_entries):
            self.entry(i)
        self.check_kinds()
        for i in range(n_tensors):
            self.tensor(i)
        self.read(self.at)
        self.place()

    def read(self, end: int) -> None:
        """All up to `end`, which lies in the file, is in `data`."""
        if end > MAX_HEADER_BYTES:
            raise bad_file(self.path, f"has a header of more than {MAX_HEADER_BYTES >> 20} MiB", self.at)
        while len(self.data) < end:
            n_bytes = min(self.size - len(self.data), max(READ_BYTES, end - len(self.data)))
            try:
                more = os.pread(self._fd, n_bytes, len(self.data))
            except OSError as error:
                raise bad_file(self.path, f"cannot be read: {error.strerror}", len(self.data)) from None
            if not more:
                raise bad_file(self.path, "was cut while it was read", len(self.data))
            self.data += more

    def header(self) -> tuple[int, int]:
        """(n_tensors, n_metadata)."""
        self.read(24)
        if bytes(self.data[:4]) != MAGIC:
            # Not what it is instead: the daemon may read what its caller may not.
            raise bad_file(self.path, "is not GGUF", 0)
        version = _U32.unpack_from(self.data, 4)[0]
        if version and version & 0xFFFF == 0:
            raise bad_file(self.path, "is big-endian GGUF; only little-endian files can be used", 4)
        if version not in VERSIONS:
            raise bad_file(self.path, f"is GGUF version {version}; versions 2 and 3 can be read", 4)
        n_tensors, n_entries = _U64.unpack_from(self.data, 8)[0], _U64.unpack_from(self.data, 16)[0]
        if n_tensors * MIN_TENSOR_BYTES + n_entries * MIN_ENTRY_BYTES > self.size - 24:
            raise bad_file(self.path, f"{n_tensors} tensors and {n_entries} metadata entries do not fit in the file", 8)
        self.at = 24
        return n_tensors, n_entries

    def entry(self, i: int) -> None:
        at = self.at
        key = self.string(f"the key of metadata entry {i}", MAX_KEY_BYTES)
        if key in self.part.values:
            raise bad_file(self.path, "appears twice", at, key=key)
        type_id = self.scalar(_U32, f"the type of key {key!r}")
        if type_id == ARRAY:
            self.part.values[key] = self.array(key)
        elif type_id == STRING:
            self.part.values[key] = self.string(f"the value of key {key!r}")
        elif type_id in SCALARS:
            value = self.scalar(_SCALARS[type_id], f"the value of key {key!r}")
            if SCALARS[type_id][0] == "bool":
                if value > 1:
                    raise bad_file(self.path, f"is a bool of value {value}", self.at - 1, key=key)
                value = value == 1
            self.part.values[key] = value
        else:
            raise bad_file(self.path, f"has the unknown value type {type_id}", self.at - 4, key=key)

    def array(self, key: str) -> Array:
        type_id = self.scalar(_U32, f"the type of array {key!r}")
        n = self.scalar(_U64, f"the length of array {key!r}")
        if type_id == ARRAY:
            raise bad_file(self.path, "is an array of arrays, which no model needs", self.at - 12, key=key)
        if type_id != STRING and type_id not in SCALARS:
            raise bad_file(self.path, f"is an array of the unknown value type {type_id}", self.at - 12, key=key)
        array = Array(self.path, key, type_id, n, self.at, self.data)
        value_bytes = 8 if type_id == STRING else _SCALARS[type_id].size  # a string has at least its length
        if n * value_bytes > self.size - self.at:
            raise bad_file(self.path, f"has {n} values, more than the file has left", self.at - 8, key=key)
        self.at = self.end_of_strings(key, n) if type_id == STRING else self.at + n * value_bytes
        return array

    def end_of_strings(self, key: str, n: int) -> int:
        # A vocabulary has 10^5 strings: this loop is most of the time that opening takes.
        unpack, data, at, n_read = _U64.unpack_from, self.data, self.at, len(self.data) - 8
        for _ in range(n):
            if at > n_read:
                if at > self.size - 8:
                    raise bad_file(self.path, "has strings that end outside the file", self.at, key=key)
                self.read(at + 8)
                n_read = len(data) - 8
            at += 8 + unpack(data, at)[0]
        if at > self.size:
            raise bad_file(self.path, "has strings that end outside the file", self.at, key=key)
        return at

    def tensor(self, i: int) -> None:
        """Reads entry i of the directory; its offset still counts from the start of the data."""
        start = self.at
        name = self.string(f"the name of tensor {i}", MAX_NAME_BYTES)
        n_dims = self.scalar(_U32, f"the dimensions of tensor {name!r}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise bad_file(
                self.path, f"has {n_dims} dimensions, 1 to {MAX_DIMS} are possible", self.at - 4, tensor=name
            )
        at = self.at
        dims = tuple(self.scalar(_U64, f"the dimensions of tensor {name!r}") for _ in range(n_dims))
        type_id = self.scalar(_U32, f"the type of tensor {name!r}")
        offset = self.scalar(_U64, f"the offset of tensor {name!r}")
        if type_id not in formats.BY_ID:
            raise bad_file(self.path, f"has the unknown type {type_id}", self.at - 12, tensor=name)
        if 0 in dims:
            raise bad_file(self.path, f"has a dimension of size 0: {list(dims)}", at, tensor=name)
        type_name = formats.BY_ID[type_id].name
        try:
            n_bytes = formats.n_bytes(type_name, dims)
        except ValueError as error:
            raise bad_file(self.path, str(error), at, tensor=name) from None
        if n_bytes > self.size:
            why = f"of dimensions {list(dims)} takes {n_bytes} bytes, the file has {self.size}"
            raise bad_file(self.path, why, at, tensor=name)
        if offset > self.size:
            raise bad_file(self.path, f"has the offset {offset}, outside the file", self.at - 8, tensor=name)
        if name in self.part.tensors:
            raise bad_file(self.path, "appears twice", start, tensor=name)
        self.part.tensors[name] = TensorInfo(name, type_name, dims, offset, n_bytes, self.number)

    def place(self) -> None:
        """Makes the offsets absolute. Tensors must be aligned, lie inside the file and apart from each other."""
        alignment = self.part.values.get("general.alignment", 32)
        if alignment < 1 or alignment & (alignment - 1):
            raise bad_file(self.path, f"is {alignment}, no power of two", key="general.alignment")
        data_at = -(-self.at // alignment) * alignment
        end, last = data_at, ""
        for info in sorted(self.part.tensors.values(), key=lambda info: info.offset):
            at = data_at + info.offset
            if info.offset % alignment:
                raise bad_file(self.path, f"is not aligned to {alignment} bytes", at, tensor=info.name)
            if at < end:
                raise bad_file(self.path, f"overlaps tensor {last!r}", at, tensor=info.name)
            end, last = at + info.n_bytes, info.name
            if end > self.size:
                why = f"ends at byte {end}, the file at {self.size}: it is truncated"
                raise bad_file(self.path, why, at, tensor=info.name)
            self.part.tensors[info.name] = replace(info, offset=at)

    def check_kinds(self) -> None:
        for key, expected in KINDS.items():
            value = self.part.values.get(key)
            kind = f"[{value.kind}]" if isinstance(value, Array) else type(value).__name__
            if value is not None and kind != expected:
                raise bad_file(self.path, f"must be {expected}, is {kind}", key=key)

    def scalar(self, code: struct.Struct, what: str) -> Any:
        if self.at + code.size > self.size:
            raise bad_file(self.path, f"ends inside {what}: it is truncated", self.at)
        self.read(self.at + code.size)
        (value,) = code.unpack_from(self.data, self.at)
        self.at += code.size
        return value

    def string(self, what: str, max_bytes: int | None = None) -> str:
        begin = self.at + 8
        n_bytes = self.scalar(_U64, what)
        if max_bytes is not None and n_bytes > max_bytes:
            raise bad_file(self.path, f"{what} has {n_bytes} bytes, at most {max_bytes} are possible", begin - 8)
        if n_bytes > self.size - begin:
            raise bad_file(self.path, f"{what} has {n_bytes} bytes, more than the file has left", begin - 8)
        self.at = begin + n_bytes
        self.read(self.at)
        try:
            return str(self.data[begin : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise bad_file(self.path, f"{what} is not UTF-8", begin + error.start) from None
