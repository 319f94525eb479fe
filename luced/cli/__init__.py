"""The command `luced`. Each command imports what it needs when it runs, so that --help and errors come at once."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

import luced
from luce.errors import LuceError
from luced.cli import bench, doctor, logits, models, plan, pull, remove, serve, settings, verify
from luced.cli.exits import EPILOG, EXIT_STATUS, INTERRUPTED, fail


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
def cli() -> None:
    """Keeps one warm engine for the GGUF models of this machine and serves local clients over a Unix socket.

    Start the daemon with `luced serve`, then ask it something with `luce-ask 'question'`.
    """


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"luced {luced.__version__}")


for command in (
    serve.serve,
    models.models,
    pull.pull,
    verify.verify,
    remove.rm,
    plan.plan,
    bench.bench,
    logits.logits,
    settings.config,
    doctor.doctor,
):
    cli.add_command(command)


def main() -> NoReturn:
    try:
        cli.main(prog_name="luced", standalone_mode=False)
    except LuceError as error:
        fail(str(error), error.remedy, EXIT_STATUS[error.code.actor])
    except click.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(0)
