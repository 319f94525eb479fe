"""Calls of a tape as the structs of luce.h."""

from __future__ import annotations

import ctypes
from typing import Any

from luced.device import abi
from luced.device.library import Context
from luced.device.values import ALIGNMENT, Call, Value
from luced.errors import ModelError


def tensor(value: Value, pointer: int, bound: int = 0) -> abi.Tensor:
    """The value in storage that begins at `pointer`; with a bound, at most so many rows where it is ragged."""
    ne = value.ne
    if bound and value.rows is not None:
        ne = (*ne[:-1], min(ne[-1], bound))
    return describe(pointer + value.offset, value.type, ne, value.nb, value.packed)


def describe(data: int, dtype: str, ne: tuple[int, ...], nb: tuple[int, ...], packed: bool = False) -> abi.Tensor:
    """luce_tensor: missing dimensions have one element. ModelError: no library has kernels for the type."""
    t = abi.Tensor()
    if dtype not in abi.Type.__members__:
        raise ModelError("unsupported_model", f"there are no kernels for tensors of type {dtype}")
    t.data, t.type, t.layout = data, abi.Type[dtype], abi.Layout.PACKED if packed else abi.Layout.ROWS
    n_missing = 4 - len(ne)
    t.ne[:] = [*ne, *[1] * n_missing]
    t.nb[:] = [*nb, *[nb[-1] * ne[-1]] * n_missing]
    return t


def workspace_bytes(context: Context, calls: list[Call], bound: int = 0) -> list[int]:
    """Bytes that each call works in beside its arguments, which need not have their memory yet.

    ModelError: the library has no kernel for one of them.
    """
    return [context.workspace_bytes(op_of(call), arguments(call, bound, is_placed=False)) for call in calls]


def op_of(call: Call) -> abi.Op:
    return abi.Op(abi.OPS.index(call.op))


def arguments(call: Call, bound: int = 0, is_placed: bool = True) -> ctypes.Structure:
    """The call's struct. Unless its storages have their memory, addresses say no more than that there is a value."""
    args: Any = abi.ARGS[call.op]()
    for name, value in call.args.items():
        if isinstance(value, Value):
            assert value.storage.pointer or not is_placed, f"{value} of {call.op} has no memory"
            setattr(args, name, tensor(value, value.storage.pointer or ALIGNMENT, bound))
        elif value is not None:
            setattr(args, name, value)
    if call.rows is not None:
        args.n_rows = call.rows.counter.storage.pointer + call.rows.counter.offset
    return args  # type: ignore[no-any-return]
