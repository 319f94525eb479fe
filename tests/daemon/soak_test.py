"""The short form of tests.daemon.soak: nothing is left over, with and without an engine that is killed."""

from __future__ import annotations

import pytest

from tests.daemon.soak import soak


@pytest.mark.parametrize("kills", [0, 2])
def test_sixty_four_clients(kills: int) -> None:
    assert soak(8, seed=7, kills=kills)["restarts"] == kills
