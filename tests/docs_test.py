"""What the documents say is there: files, links, make targets, commands and their options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from luce_shell.ask import command as luce_ask
from luce_shell.luce import cli as luce
from luced.cli import cli as luced

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS: dict[str, click.Command] = {"luce": luce, "luced": luced, "luce-ask": luce_ask}


def code(document: Path) -> list[str]:
    """Every line of code of a document: of its blocks, indented or fenced, and between backticks."""
    text = document.read_text()
    blocks = re.findall(r"^(?: {4}|\t)(.+)$", text, re.M)
    for fenced in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        blocks += fenced.splitlines()
    return blocks + re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    gone = [t for t in targets if "://" not in t and not (document.parent / t.partition("#")[0]).exists()]
    assert not gone


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_make_targets_exist(document: Path) -> None:
    there = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {m for line in code(document) for m in re.findall(r"^make ([a-z]+)", line)}
    assert named <= there


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_commands_and_options_exist(document: Path) -> None:
    unknown = [
        line for line in code(document) for words in commands(line) if (why := unknown_word(words)) is not None and why
    ]
    assert not unknown


def commands(line: str) -> list[list[str]]:
    """The commands of ours in a line of shell, as words."""
    found = []
    for part in re.split(r"[|;&]|\$\(", line.partition(" #")[0].removeprefix("$ ")):
        try:
            words = shlex.split(part)
        except ValueError:  # half of a quotation
            continue
        if words and words[0] in COMMANDS:
            found.append(words)
    return found


def unknown_word(words: list[str]) -> str | None:
    """The first subcommand or option that --help would not show."""
    command = COMMANDS[words[0]]
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return rest[0]
        command = command.commands[rest.pop(0)]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    return next((w for w in rest if w.startswith("-") and w != "-" and w.partition("=")[0] not in options), None)


def test_an_unknown_option_is_seen() -> None:
    assert [unknown_word(w) for w in commands("git diff | luce-ask --no-such-option 'what?' | less")] == [
        "--no-such-option"
    ]
    assert [unknown_word(w) for w in commands("luced no-such-command")] == ["no-such-command"]


def test_the_layout_names_every_source() -> None:
    layout = (
        (ROOT / "docs/architecture.md")
        .read_text()
        .partition("## 15. Layout")[2]
        .partition("```\n")[2]
        .partition("```")[0]
    )
    named = {line.split()[0] for line in layout.splitlines() if line}
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in ("luced", "clients", "kernels")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".cpp", ".h"} and path.name != "__init__.py"
    }
    listed_whole = tuple(name for name in named if name.endswith("/"))
    missing = sorted(name for name in there - named if not name.startswith(listed_whole))
    assert not missing
    assert all((ROOT / name).exists() for name in named)
