"""How a command ends: sysexits.h, as luce-ask."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

EXIT_STATUS = {"caller": 65, "peer": 76, "operator": 78, "supervisor": 70}  # by who must act
INTERRUPTED = 130
EPILOG = """\b
Exit codes:
   0  done
   2  wrong use of the command
  65  it cannot be done as it was asked (unknown model, ...)
  70  the engine failed
  78  a model, a setting or the machine must be put right
 130  interrupted (Ctrl-C)"""


def fail(message: str, remedy: str, status: int) -> NoReturn:
    click.echo(f"luced: {message}", err=True)
    click.echo(f"  -> {remedy}", err=True)
    sys.exit(status)
