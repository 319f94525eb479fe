"""What every command does around its work: its options, its errors, its end."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import click

from luce import LuceError
from luce_shell import environment, exits

SETTINGS = {"help_option_names": ["-h", "--help"]}
EPILOG = "\b\n" + exits.HELP

json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON, for an error too.",
    callback=lambda context, _, value: context.meta.__setitem__("as_json", value) or value,
)


def say(message: str, remedy: str = "") -> None:
    """To the one who typed the command."""
    name = click.get_current_context().find_root().info_name
    print(f"{name}: {message}", *([f"  {remedy}"] if remedy else []), sep="\n", file=sys.stderr)


def to_json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=list) + "\n"  # the bytes of tokens: a list of numbers


def run(command: click.Command, name: str) -> NoReturn:
    """The process. Not click's own main, which has other exit codes for a closed pipe and for Ctrl-C."""
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    if instruction := environment.completion_request(variable):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(command, {}, name, variable, instruction))
    context = command.context_class(
        command, info_name=name
    )  # of the program, for what goes wrong before another is made
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 (closed: where print would take stdout)
    with context.scope(cleanup=False):
        if sys.stdout is None:
            say("standard output is closed", "let it go to a terminal, a file or a pipe")
            sys.exit(exits.NO_FILE)
        sys.exit(_run(command, name))


def _run(command: click.Command, name: str) -> int:
    meta: dict[str, Any] = {}
    try:
        with command.make_context(name, sys.argv[1:]) as context:
            meta = context.meta
            code = command.invoke(context)
            sys.stdout.flush()
            return code or 0
    except LuceError as error:
        if meta.get("as_json"):
            sys.stdout.buffer.write(to_json({"error": error.to_wire()}).encode())
        else:
            say(error.message, error.remedy)
        return exits.exit_code(error)
    except exits.Failure as error:
        if meta.get("as_json"):
            described = {"code": error.exit_code, "message": str(error), "remedy": error.remedy}
            sys.stdout.buffer.write(to_json({"error": described}).encode())
        else:
            say(str(error), error.remedy)
        return error.exit_code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one does not wait
        return exits.INTERRUPTED
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        where = getattr(error, "ctx", None)  # of a UsageError: the command that was used so
        say(error.format_message(), f"{where.command_path if where else name} --help tells how to use it")
        return error.exit_code
    except OSError as error:  # of standard output: all others have been seen to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if isinstance(error, BrokenPipeError):
            return exits.PIPE_CLOSED
        say(f"standard output: {error.strerror}", "let it go where there is room")
        return exits.NO_FILE
