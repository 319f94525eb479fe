"""Writes the man pages and completion scripts in clients/shell/share: python clients/tools/gen_manual.py

They are made from the commands. With --check it writes nothing, and fails if one of them is not as it would write it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "clients" / "python"), str(ROOT / "clients" / "shell")]

from luce import __version__  # noqa: E402
from luce_shell import ask, luce  # noqa: E402
from luced.cli import cli as luced  # noqa: E402

ROFF = str.maketrans({"\\": "\\e", "-": "\\-", "`": "\\(ga", "'": "\\(aq", "~": "\\(ti"})
SHARE = ROOT / "clients" / "shell" / "share"
COMMANDS: dict[str, click.Command] = {"luce": luce.cli, "luce-ask": ask.command, "luced": luced}
TITLES = {
    "luce": "look at the daemon that keeps models warm",
    "luce-ask": "ask a model on this machine",
    "luced": "keep one warm engine for the models of this machine",
}
SCRIPTS = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}
SOCKET = ("LUCE_SOCKET", "The socket of the daemon; without it, the user's own or the machine's.")
LOG = ("XDG_DATA_HOME", "The conversation log is luce/logs.db in it; without it, in ~/.local/share.")
ENVIRONMENT = {
    "luce": (SOCKET, LOG),
    "luce-ask": (SOCKET, LOG, ("NO_COLOR", "If set, no colours."), ("TERM", "If dumb, the answer is shown as it is.")),
    "luced": (SOCKET, ("LUCE_...", "Any setting, in capitals: LUCE_N_CTX. `luced config` lists them.")),
}
FILES = {
    "luce": (("~/.local/share/luce/logs.db", "The conversation log."),),
    "luce-ask": (("~/.local/share/luce/logs.db", "The conversation log."),),
    "luced": (
        ("/etc/luce/luced.toml, ~/.config/luce/luced.toml", "Settings."),
        ("~/.local/share/luce/models, /var/lib/luce/models", "Models."),
    ),
}


def page(name: str) -> str:
    """The man page of a program, in the macros of man(7)."""
    command = COMMANDS[name]
    others = [f"{escape(other)}(1)" for other in COMMANDS if other != name]
    lines = [
        '.\\" Written by clients/tools/gen_manual.py',
        f'.TH {escape(name.upper())} 1 "" "luced {__version__}" "User Commands"',
        *(".SH NAME", f"{escape(name)} \\- {escape(TITLES[name])}"),
        *(".SH SYNOPSIS", *synopsis(name, command)),
        *(".SH DESCRIPTION", *text(command.help or "")),
        *(".SH OPTIONS", *options(name, command)),
    ]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for words, inner in subcommands(name, command):
            lines += [f".SS {escape(words)}", *synopsis(words, inner), ".PP", *text(inner.help or "")]
            lines += options(words, inner)
    epilog = (command.epilog or "").replace("Exit codes:\n", "")
    if epilog:
        lines += [".SH EXIT STATUS", *text(epilog)]
    lines += [".SH ENVIRONMENT", *definitions(ENVIRONMENT[name]), ".SH FILES", *definitions(FILES[name])]
    return "\n".join([*lines, ".SH SEE ALSO", ", ".join(others)]) + "\n"


def subcommands(name: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for word in sorted(group.commands):
        command = group.commands[word]
        if not command.hidden:
            yield f"{name} {word}", command
            if isinstance(command, click.Group):
                yield from subcommands(f"{name} {word}", command)


def synopsis(words: str, command: click.Command) -> list[str]:
    usage = " ".join(command.collect_usage_pieces(context_of(words, command)))
    return [f"\\fB{escape(words)}\\fR {escape(usage)}"]


def options(words: str, command: click.Command) -> list[str]:
    context = context_of(words, command)
    own = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    records = [p.get_help_record(context) for p in own if "--help" not in p.opts or command is COMMANDS.get(words)]
    return definitions([record for record in records if record])


def definitions(rows: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> list[str]:
    return [line for term, meaning in rows for line in (".TP", f"\\fB{escape(term)}\\fR", escape(meaning))]


def text(help_text: str) -> list[str]:
    """Paragraphs; those that begin with \\b keep their lines."""
    lines = []
    for paragraph in re.split(r"\n\s*\n", help_text.strip()):
        if paragraph.lstrip().startswith("\b"):
            kept = paragraph.lstrip()[1:].strip("\n").split("\n")
            lines += [".PP", ".nf", *(escape(line) for line in kept), ".fi"]
        else:
            lines += [".PP", escape(" ".join(paragraph.split()))]
    return lines[1:]  # the first paragraph begins by itself


def escape(words: str) -> str:
    """As roff shows it. No line of ours begins with a dot or an apostrophe unguarded."""
    words = (
        words.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace("~", "\\(ti")
    )
    return f"\\&{words}" if words.startswith(".") else words


def context_of(words: str, command: click.Command) -> click.Context:
    settings = {"help_option_names": ["-h", "--help"], **command.context_settings}
    return click.Context(command, info_name=words, **settings)


def files() -> dict[Path, str]:
    """All that there is to write."""
    pages = {SHARE / "man" / "man1" / f"{name}.1": page(name) for name in COMMANDS}
    scripts = {
        SHARE / place.format(name): luce.completion_script(shell, name)
        for shell, place in SCRIPTS.items()
        for name in COMMANDS
    }
    return pages | scripts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a file is not up to date")
    is_check = parser.parse_args().check
    for path, content in files().items():
        if is_check:
            if not path.exists() or path.read_text() != content:
                sys.exit(f"{path.relative_to(ROOT)} is not up to date: run make generate")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


if __name__ == "__main__":
    main()
