"""The oracle's reading of GGUF's block formats against the package gguf, bit for bit."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from luced.oracle import blocks

BLOCK_TYPES = {type_id: dtype for type_id, dtype in blocks.DTYPES.items() if dtype.names}


@pytest.mark.parametrize("type_id", BLOCK_TYPES)
def test_blocks_mean_what_gguf_says(type_id: int) -> None:
    dtype = BLOCK_TYPES[type_id]
    random = np.random.default_rng(type_id)
    raw: np.ndarray[Any, Any] = random.integers(0, 256, (7, 3 * dtype.itemsize), dtype=np.uint8).view(dtype)
    for field in {"d", "dmin", "m"} & set(dtype.names or ()):
        raw[field] = random.normal(size=raw.shape)
    expected = dequantize(raw.view(np.uint8), gguf.GGMLQuantizationType(type_id))
    np.testing.assert_array_equal(blocks.values(raw), expected)


def test_bf16_rounds_to_nearest_even() -> None:
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xC0490FDB], np.uint32)
    assert blocks.to_bf16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC049]


def test_q4_0_is_written_as_gguf_does() -> None:
    x = np.random.default_rng(0).standard_normal((50, 256)).astype(np.float32)
    expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q4_0)
    np.testing.assert_array_equal(blocks.to_q4_0(x).view(np.uint8), expected)


def test_view_follows_strides() -> None:
    memory = np.arange(64, dtype=np.int32)
    seen = blocks.view(memory, 8, 26, (3, 2, 1, 1), (4, 40, 80, 80))
    assert seen.reshape(2, 3).tolist() == [[2, 3, 4], [12, 13, 14]]
