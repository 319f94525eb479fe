"""ggml's quantisers, which write every type of weight: they are in the library that xllamacpp brings."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray


def quantized(value: NDArray[np.float32], type_id: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """[n, K] as rows of blocks, `shape` in bytes, with every column as important as the others. Needs xllamacpp."""
    import xllamacpp.xllamacpp

    chunk = ctypes.CDLL(xllamacpp.xllamacpp.__file__).ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    n, k = value.shape
    value, importance, out = np.ascontiguousarray(value), np.ones(k, np.float32), np.zeros(shape, np.uint8)
    n_bytes = chunk(type_id, value.ctypes.data, out.ctypes.data, 0, n, k, importance.ctypes.data)
    assert n_bytes == out.nbytes, (type_id, n_bytes, out.nbytes)
    return out
