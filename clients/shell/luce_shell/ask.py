"""luce-ask: one question, one answer."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from luce import Answer, Client, LuceError, Stream, Text, __version__
from luce_shell import exits
from luce_shell.environment import terminal_is_dumb
from luce_shell.models import complete_model
from luce_shell.options import OptionError, complete_option, read_options
from luce_shell.program import EPILOG, SETTINGS, json_option, run, say, to_json
from luce_shell.question import read_question, typed
from luce_shell.terminal import Output, StatusLine

if TYPE_CHECKING:
    from luce_shell.log import Exchange

FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,})[^`\n]*\n(.*?)^ {0,3}\1[`~]*[ \t]*$", re.M | re.S)


@click.command(context_settings=SETTINGS, epilog=EPILOG)
@click.argument("question", required=False)
@click.option("-s", "--system", metavar="TEXT", help="Tell the model how to answer.")
@click.option(
    "-m",
    "--model",
    metavar="NAME",
    default="",
    shell_complete=complete_model,
    help="Who answers; `luce ls` lists the names.",
)
@click.option("-c", "--continue", "goes_on", is_flag=True, help="Go on with the last conversation.")
@click.option("--cid", metavar="ID", help="Go on with this one; `luce logs list` has the ids. Its beginning is enough.")
@click.option(
    "-f",
    "--fragment",
    "fragments",
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    help="Put a file before the question; - is standard input. May be given several times.",
)
@click.option(
    "-o",
    "--option",
    "options",
    type=(str, str),
    multiple=True,
    metavar="NAME VALUE",
    shell_complete=complete_option,
    help="A sampling parameter, as docs/protocol.md has them: temperature, seed, max_tokens, stop, ...",
)
@click.option("-x", "--extract", is_flag=True, help="Print only the first block of fenced code.")
@click.option("--xl", "--extract-last", "extract_last", is_flag=True, help="Print only the last one.")
@click.option("-u", "--usage", is_flag=True, help="Tell tokens and speed, on standard error.")
@click.option("-n", "--no-log", is_flag=True, help="Leave no trace in the conversation log.")
@click.option(
    "--class", "priority", type=click.Choice(("interactive", "agent", "batch")), help="Who may wait for whom."
)
@click.option("--no-stream", is_flag=True, help="Print the answer when it is complete.")
@click.option("--no-markdown", is_flag=True, help="Show the answer as it is, on a terminal too.")
@json_option
@click.version_option(__version__, message="%(prog)s %(version)s")
def command(
    question: str | None,
    system: str | None,
    model: str,
    goes_on: bool,
    cid: str | None,
    fragments: tuple[str, ...],
    options: tuple[tuple[str, str], ...],
    extract: bool,
    extract_last: bool,
    usage: bool,
    no_log: bool,
    priority: str | None,
    no_stream: bool,
    no_markdown: bool,
    as_json: bool,
) -> None:
    """Ask the model that luced keeps warm.

    \b
    luce-ask 'Why is the sky blue?'
    git diff | luce-ask 'Write a commit message.'
    luce-ask -s 'Answer in French.' -o temperature 0 < letter.txt
    luce-ask -c 'And in German?'
    luce-ask -x -f main.c 'Rewrite it without the loop.' > new.c

    Files (-f) come first, then what comes through a pipe, then QUESTION. Standard output gets the answer and nothing
    else, as UTF-8, and a newline where it does not end with one; all the rest goes to standard error. On a terminal
    Markdown is shown with its form.
    """
    if (extract or extract_last) and as_json:
        raise click.UsageError("-x and --json are two kinds of output")
    params = _params(options, as_json)
    if priority:
        params["priority"] = priority
    text = read_question(question, fragments)
    past = _past(cid) if goes_on or cid is not None else []
    if past:
        model = model or past[-1].model
        system = past[-1].system if system is None else system
    messages = [{"role": "user", "content": text}]
    for exchange in reversed(past):
        messages = [
            {"role": "user", "content": exchange.question},
            {"role": "assistant", "content": exchange.answer},
            *messages,
        ]
    is_streamed = not (as_json or no_stream or extract or extract_last)
    output = _output(no_markdown or not is_streamed)
    try:
        with (
            Client(name="luce-ask") as client,
            client.chat(
                messages,
                model=typed("-m", model),
                system=None if system is None else typed("-s", system),
                stream=is_streamed,
                **params,
            ) as stream,
        ):
            _stream(stream, output)
            answer = stream.answer
    except (LuceError, KeyboardInterrupt):
        if output.is_terminal:
            output.break_line()  # leave that of an unfinished answer; in a pipe it stays as it is
        raise
    if as_json:
        output.write(to_json(_describe_answer(answer)))
    elif extract or extract_last:
        output.write(_extract(answer.text, extract_last))
    elif no_stream:
        output.write(answer.text)
    output.close()
    if not as_json:
        _tell(answer, "max_tokens" in params, usage)
    if not no_log:
        _write_log(past, answer, system, text, {name: value for name, value in params.items() if name != "priority"})


def _params(options: tuple[tuple[str, str], ...], as_json: bool) -> dict[str, Any]:
    try:
        params = read_options([(name, typed(f"-o {name}", value)) for name, value in options])
    except OptionError as error:
        raise click.UsageError(f"-o: {error}") from None
    for name in ("n", "logprobs"):
        if name in params and not as_json:
            raise click.UsageError(f"-o: {name} shows only with --json")
    return params


def _output(is_plain: bool) -> Output:
    if is_plain or not sys.stdout.isatty() or terminal_is_dumb():
        return Output()
    from luce_shell.render import Markdown

    return Markdown()


def _past(cid: str | None) -> list[Exchange]:
    """The conversation to go on with. Failure: it cannot be read, or there is none."""
    from luce_shell import log

    try:
        past = log.conversation(cid)
    except log.LogError as error:
        raise exits.Failure(f"cannot read the conversation log: {error}", "ask without -c", exits.NO_FILE) from None
    if not past:
        missing = "there is no conversation to go on with" if cid is None else f"there is no conversation {cid!r}"
        raise exits.Failure(missing, "`luce logs list` has those there are", exits.BY_ACTOR["caller"])
    return past


def _write_log(
    past: list[Exchange], answer: Answer, system: str | None, question: str, options: dict[str, Any]
) -> None:
    from luce_shell import log

    try:
        log.write(
            log.Exchange(
                conversation=past[-1].conversation if past else log.new_conversation(),
                at=time.time(),
                model=answer.model,
                system=system,
                question=question,
                answer=answer.text,
                finish=answer.choices[0].finish,
                options=options,
                seed=answer.seed,
                n_prompt=answer.usage.prompt,
                n_cached=answer.usage.cached,
                n_generated=answer.usage.generated,
                total_s=answer.timings.total_s,
            )
        )
    except log.LogError as error:
        say(f"the conversation is not logged: {error}; with -n there is no log")


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
                status.show(event)
    finally:
        status.clear()


def _tell(answer: Answer, has_limit: bool, usage: bool) -> None:
    """What of the question was not answered as asked; and what it cost."""
    for note in answer.degraded:
        say(note)
    if answer.choices[0].finish == "length" and not has_limit:
        say("the answer was cut: the context is full")
    if usage:
        tokens, times = answer.usage, answer.timings
        speed = (
            f" ({(tokens.generated - 1) / times.decode_s:.1f} tokens/s)" if times.decode_s and tokens.generated else ""
        )
        say(
            f"{tokens.prompt} tokens read ({tokens.cached} of them cached), {tokens.generated} written{speed},"
            f" {times.total_s:.2f} s; seed {answer.seed}"
        )


def _extract(text: str, last: bool) -> str:
    """The first or last block of fenced code; the whole text, with a warning, where there is none."""
    blocks = [match[2] for match in FENCED.finditer(text)]
    if not blocks:
        say("there is no fenced code in the answer: this is all of it")
        return text
    return blocks[-1 if last else 0]


def _describe_answer(answer: Answer) -> dict[str, Any]:
    whole = asdict(answer)
    for choice in whole["choices"]:
        if choice["logprobs"] is None:
            del choice["logprobs"]
    return {"answer": answer.text, "finish": answer.choices[0].finish, **whole}


def main() -> NoReturn:
    run(command, "luce-ask")


if __name__ == "__main__":
    main()
