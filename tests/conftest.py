"""No test depends on the settings and models of who runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from luced.device import library

# The same on every machine, however slow it is.
settings.register_profile("luced", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("luced")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--library", type=Path, help="Test this kernel library, as `make test SAN=...` does.")


def pytest_configure(config: pytest.Config) -> None:
    library.CPU_LIBRARY = config.getoption("--library") or library.CPU_LIBRARY


@pytest.fixture(scope="session", autouse=True)
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A user of luced for the first time; the processes that tests start inherit it."""
    empty = str(tmp_path_factory.mktemp("stranger"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "HF_HUB_CACHE"):
            patch.setenv(name, empty)
        for name in [name for name in os.environ if name.startswith("LUCE_") or name.lower().endswith("_proxy")]:
            patch.delenv(name)
        yield
