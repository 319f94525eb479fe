"""luce-ask: one question, one answer."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any, NoReturn

import click

from luce import Answer, Client, LuceError, Stream, Text, __version__
from luce_shell import exits
from luce_shell.options import OptionError, read_options
from luce_shell.terminal import Output, StatusLine, describe


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\n" + exits.HELP,
)
@click.argument("question", required=False)
@click.option("-s", "--system", metavar="TEXT", help="Tell the model how to answer.")
@click.option("-m", "--model", metavar="NAME", default="", help="Who answers; `luced models` lists the names.")
@click.option(
    "-o",
    "--option",
    "options",
    type=(str, str),
    multiple=True,
    metavar="NAME VALUE",
    help="A sampling parameter, as docs/protocol.md has them: temperature, seed, max_tokens, stop, ...",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for an error too.")
@click.option("--no-stream", is_flag=True, help="Print the answer when it is complete.")
@click.version_option(__version__, message="%(prog)s %(version)s")
def command(
    question: str | None,
    system: str | None,
    model: str,
    options: tuple[tuple[str, str], ...],
    as_json: bool,
    no_stream: bool,
) -> int:
    """Ask the model that luced keeps warm.

    \b
    luce-ask 'Why is the sky blue?'
    git diff | luce-ask 'Write a commit message.'
    luce-ask -s 'Answer in French.' -o temperature 0 < letter.txt

    What comes through a pipe goes before QUESTION. Standard output gets the answer and nothing else, as UTF-8, and a
    newline where it does not end with one; all the rest goes to standard error.
    """
    params = _params(options, as_json)
    output = Output()
    try:
        text = _question(question)
        with (
            Client(name="luce-ask") as client,
            client.chat(text, model=model, system=system, stream=not (as_json or no_stream), **params) as stream,
        ):
            _stream(stream, output)
            if as_json:
                output.write(_to_json(_describe_answer(stream.answer)))
                return 0
            if no_stream:
                output.write(stream.answer.text)
            output.end_line()
            _tell(stream.answer, "max_tokens" in params)
    except LuceError as error:
        if as_json:
            output.write(_to_json({"error": error.to_wire()}))
        else:
            _break_line(output)
            _say(error.message, error.remedy)
        return exits.exit_code(error)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one does not wait
        _break_line(output)
        return exits.INTERRUPTED
    return 0


def _params(options: tuple[tuple[str, str], ...], as_json: bool) -> dict[str, Any]:
    try:
        params = read_options(options)
    except OptionError as error:
        raise click.UsageError(f"-o: {error}") from None
    for name in ("n", "logprobs"):
        if name in params and not as_json:
            raise click.UsageError(f"-o: {name} shows only with --json")
    return params


def _question(argument: str | None) -> str:
    """What was piped in, a blank line, and the argument; or one of them."""
    piped = ""
    if sys.stdin is not None and not sys.stdin.isatty():
        data = sys.stdin.buffer.read()
        try:
            piped = data.decode()
        except UnicodeDecodeError as error:
            raise LuceError(
                "bad_parameter",
                f"standard input is not UTF-8 (byte {error.start})",
                remedy="convert it, with iconv say",
            ) from None
    parts = [part for part in (piped.rstrip("\n"), argument) if part]
    if not parts:
        raise click.UsageError("there is no question")
    return "\n\n".join(parts)


def _stream(stream: Stream, output: Output) -> None:
    """Print the pieces as they come; before the first, what is waited for."""
    status = StatusLine(sys.stderr)
    has_begun = False
    try:
        for event in stream.events():
            if isinstance(event, Text):
                status.clear()
                has_begun = True
                output.write(event.text)
            elif not has_begun:
                status.show(describe(event))
    finally:
        status.clear()


def _tell(answer: Answer, has_limit: bool) -> None:
    """What of the question was not answered as asked."""
    for note in answer.degraded:
        _say(note)
    if answer.choices[0].finish == "length" and not has_limit:
        _say("the answer was cut: the context is full")


def _describe_answer(answer: Answer) -> dict[str, Any]:
    whole = asdict(answer)
    for choice in whole["choices"]:
        if choice["logprobs"] is None:
            del choice["logprobs"]
    return {"answer": answer.text, "finish": answer.choices[0].finish, **whole}


def _to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, default=list) + "\n"  # the bytes of tokens: a list of numbers


def _break_line(output: Output) -> None:
    """Leave the line of an unfinished answer; in a pipe it stays as it is."""
    if output.is_terminal:
        output.end_line()


def _say(message: str, remedy: str = "") -> None:
    print(f"luce-ask: {message}", *([f"  {remedy}"] if remedy else []), sep="\n", file=sys.stderr)


def main() -> NoReturn:
    """The command. Not click's own main, which has other exit codes for a closed pipe and for Ctrl-C."""
    try:
        with command.make_context("luce-ask", sys.argv[1:]) as context:
            code = command.invoke(context)
    except click.exceptions.Exit as end:  # --help, --version
        code = end.exit_code
    except click.ClickException as error:
        _say(error.format_message(), "luce-ask --help tells how to use it")
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        code = exits.PIPE_CLOSED
    sys.exit(code)


if __name__ == "__main__":
    main()
