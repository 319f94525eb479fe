"""luce logs: what was asked and answered here. SQLite is imported when one of these commands runs."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from luce_shell.environment import log_path
from luce_shell.exits import NO_FILE, Failure
from luce_shell.program import json_option, say, to_json
from luce_shell.table import print_table, write
from luce_shell.terminal import visible

if TYPE_CHECKING:
    from luce_shell.log import Exchange, LogError

QUESTION_CHARS = 50  # of a question in a list


@click.group(invoke_without_command=True)
@click.option("-n", "--number", metavar="N", type=click.IntRange(1), help="How many of the last. Default: 3.")
@click.option("-c", "--conversation", "of_last", is_flag=True, help="All of the last conversation.")
@click.option("--cid", metavar="ID", help="All of this conversation; the beginning of its id is enough.")
@json_option
@click.pass_context
def logs(context: click.Context, number: int | None, of_last: bool, cid: str | None, as_json: bool) -> None:
    """Show the last questions and answers, oldest first.

    luce-ask keeps them in a database of this user, unless it is told not to: luce-ask --no-log.
    """
    if context.invoked_subcommand:
        return
    if (of_last or cid is not None) and number is not None:
        raise click.UsageError("-n counts the last of all conversations; it does not go with -c and --cid")
    from luce_shell import log

    try:
        exchanges = log.conversation(cid) if of_last or cid is not None else log.last_exchanges(number or 3)
    except log.LogError as error:
        raise _unreadable(error) from None
    if as_json:
        write(to_json({"exchanges": [asdict(exchange) for exchange in exchanges]}))
    elif not exchanges:
        say("there is nothing here" if cid is None else f"there is no conversation {cid!r}")
    else:
        write("\n".join(_describe(exchange) for exchange in exchanges))


@logs.command("list")
@click.option("-n", "--number", metavar="N", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@json_option
def list_logs(number: int, as_json: bool) -> None:
    """List the last conversations, newest first."""
    from luce_shell import log

    try:
        found = log.conversations(number)
    except log.LogError as error:
        raise _unreadable(error) from None
    if as_json:
        write(to_json({"conversations": [asdict(each) for each in found]}))
        return
    rows = [[each.id, _when(each.at), str(each.n_exchanges), each.model, _first_words(each.question)] for each in found]
    print_table(["ID", "LAST", "ANSWERS", "MODEL", "FIRST QUESTION"], rows)


@logs.command()
@json_option
def path(as_json: bool) -> None:
    """Print where the database is."""
    write(to_json({"path": str(log_path())}) if as_json else f"{log_path()}\n")


def _describe(exchange: Exchange) -> str:
    system = f"System: {exchange.system}\n\n" if exchange.system is not None else ""
    return visible(
        f"# {_when(exchange.at)}  {exchange.model}  conversation {exchange.conversation}\n\n"
        f"{system}> " + exchange.question.rstrip("\n").replace("\n", "\n> ") + f"\n\n{exchange.answer.strip()}\n"
    )


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _first_words(question: str) -> str:
    words = " ".join(question[: 4 * QUESTION_CHARS].split())
    return words if len(words) <= QUESTION_CHARS else words[: QUESTION_CHARS - 1] + "…"


def _unreadable(error: LogError) -> Failure:
    return Failure(f"cannot read the conversation log: {error}", "`luced doctor` looks at it", NO_FILE)
