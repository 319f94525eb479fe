"""The tiny models on a CUDA device: what parity_test.py asks of the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from luced.device.choose import open_device
from luced.engine.offline import logits
from luced.errors import ModelError
from tests.models.cases import CASES
from tests.models.kernels import lacking
from tests.models.parity_test import assert_near, golden

pytestmark = pytest.mark.gpu
REFUSED = {name: kinds for name in CASES if (kinds := lacking(name))}
NAMES = [name for name in CASES if name not in REFUSED]


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    try:
        open_device("cuda").close()
    except ModelError as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    path, ids, expected = golden(name)
    assert_near(logits(path, ids, device="cuda"), expected, CASES[name].tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_chunks_change_no_bit(name: str) -> None:
    """Steps of 1 to 64 rows are one class of kernels: captured ones of every size, padded and full."""
    path, ids, _ = golden(name)
    whole = logits(path, ids, device="cuda")
    for n_batch in (1, 7, 33):
        assert np.array_equal(logits(path, ids, n_batch=n_batch, device="cuda"), whole), n_batch


@pytest.mark.parametrize(("kv_type", "tolerance"), [("f16", 5e-3), ("bf16", 5e-2), ("q8_0", 0.15)])
def test_smaller_keys_and_values(kv_type: str, tolerance: float) -> None:
    path, ids, expected = golden("llama_f16")
    assert_near(logits(path, ids, kv_type=kv_type, device="cuda"), expected, tolerance)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_kernels_is_refused(name: str) -> None:
    """Before memory is taken for it."""
    path, ids, _ = golden(name)
    with pytest.raises(ModelError, match="the CUDA library has no ") as error:
        logits(path, ids, device="cuda")
    assert error.value.name == "unsupported_model"
