"""Names of models, for the one who presses TAB."""

from __future__ import annotations

import signal
from types import FrameType

import click

from luce import Client, LuceError, Model

PATIENCE_S = 0.5  # with the daemon: the shell waits


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names that begin so. Nothing where the daemon does not answer at once; never an error."""
    names = [model.name for model in _models() if not model.problem]
    return sorted(name for name in names if name.lower().startswith(incomplete.lower()))


def complete_loaded(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The same, of the models in memory."""
    names = [model.name for model in _models() if model.state != "here"]
    return sorted(name for name in names if name.lower().startswith(incomplete.lower()))


def _models() -> tuple[Model, ...]:
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        with Client(name="completion") as client:
            return client.models()
    except (LuceError, TimeoutError):
        return ()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError
