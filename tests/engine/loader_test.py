"""What loading tells of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from luced.device.cpu import Cpu
from luced.engine import loader
from luced.errors import RequestError
from luced.gguf.catalogue import Catalogue


@pytest.fixture
def smollm2() -> Path:
    """Its embedding table is tied: packed for the logits, mapped for the tokens."""
    try:
        return Catalogue([]).find("smollm2").path
    except RequestError as error:
        pytest.skip(str(error))


def test_progress_has_one_total_and_reaches_it(smollm2: Path) -> None:
    device = Cpu()
    slices = loader.load(smollm2, device, loader.Wants(n_ctx=512))
    told = []
    try:
        while True:
            told.append(next(slices))
    except StopIteration as end:
        end.value.close()
    device.close()
    assert {total for _, total in told} == {told[0][1]}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1]
