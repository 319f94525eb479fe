"""Philox4x32-10 against the known answers that its authors publish (Random123, kat_vectors)."""

from __future__ import annotations

import numpy as np
import pytest

from luced.oracle.sampling import gumbel, philox4x32

PI = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, 0xFFFFFFFFFFFFFFFF, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (PI, 0x299F31D0A4093822, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ],
)
def test_known_answers(counter: list[int], key: int, expected: list[int]) -> None:
    assert philox4x32(key, np.array(counter, np.uint32)).tolist() == expected


def test_gumbel_noise_has_its_mean_and_variance() -> None:
    noise = gumbel(seed=1, position=2, choice=3, n_vocab=1 << 20)
    assert abs(noise.mean() - np.euler_gamma) < 0.005
    assert abs(noise.var() - np.pi**2 / 6) < 0.01
