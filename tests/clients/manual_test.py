"""The man pages: that every command and option is in them, and that roff reads them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

GENERATOR = Path(__file__).parents[2] / "clients/tools/gen_manual.py"
spec = importlib.util.spec_from_file_location("gen_manual", GENERATOR)
assert spec is not None
assert spec.loader is not None
manual = importlib.util.module_from_spec(spec)
path = sys.path[:]
spec.loader.exec_module(manual)
sys.path[:] = path
PROGRAMS = sorted(manual.COMMANDS)


def every_option(command: click.Command) -> set[str]:
    inner = [c for c in getattr(command, "commands", {}).values() if not c.hidden]
    own = {name for p in command.params if isinstance(p, click.Option) and not p.hidden for name in p.opts}
    return own.union(*map(every_option, inner))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_is_told(program: str) -> None:
    page = manual.page(program)
    command = manual.COMMANDS[program]
    assert [
        option for option in every_option(command) if f"\\fB{manual.escape(option)}" not in page.replace(", ", "\\fB")
    ] == []
    for name, inner in getattr(command, "commands", {}).items():
        assert inner.hidden or f".SS {manual.escape(f'{program} {name}')}\n" in page


def test_what_roff_would_take_for_its_own() -> None:
    assert manual.escape(".nf \\x it's -v") == "\\&.nf \\ex it\\(aqs \\-v"
    assert manual.text("One\ntwo.\n\n\b\nas\n  it is\n\nend") == [
        "One two.",
        *(".PP", ".nf", "as", "  it is", ".fi"),
        *(".PP", "end"),
    ]


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
@pytest.mark.parametrize("program", PROGRAMS)
def test_roff_has_nothing_to_say(program: str) -> None:
    done = subprocess.run(["groff", "-man", "-ww", "-z"], input=manual.page(program), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_scripts_are_what_the_command_prints() -> None:
    written = manual.files()
    for shell in ("bash", "zsh", "fish"):
        place = manual.SHARE / manual.SCRIPTS[shell].format("luce-ask")
        assert written[place] == manual.luce.completion_script(shell, "luce-ask")
