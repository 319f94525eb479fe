"""How a command ends: sysexits.h, as luce-ask."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

EXIT_STATUS = {"caller": 65, "peer": 76, "operator": 78, "supervisor": 70}  # by who must act
INTERRUPTED = 130


def fail(message: str, remedy: str, status: int) -> NoReturn:
    click.echo(f"luced: {message}", err=True)
    click.echo(f"  -> {remedy}", err=True)
    sys.exit(status)
