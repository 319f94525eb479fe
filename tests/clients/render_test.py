"""Markdown on a terminal: what is seen at the end, whatever the pieces, and that nothing of the answer is lost."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import pytest

from luce_shell import render
from tests.clients.shell import Screen

ANSWER = """\
## A *title*

The sky is **blue** because of `Rayleigh` scattering, which is stronger for short waves.

A poem,
*in lines*.

1. One
2. Two, see [here](http://a.b/c)

   and <b>more</b>
3. Three

**Bold** after a list.
```python
def f(x):
\treturn x

print(f(2))
```
- [ ] a
- b

![alt](http://a.b/c.png)
"""
SHOWN = """\
A title

The sky is blue because of Rayleigh
scattering, which is stronger for short
waves.

A poem,
in lines.

 1 One
 2 Two, see here (http://a.b/c)
   and <b>more</b>
 3 Three

Bold after a list.
```python
def f(x):
    return x

print(f(2))
```

 • [ ] a
 • b

!alt (http://a.b/c.png)"""


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes)

    def isatty(self) -> bool:
        return True


def show(monkeypatch: pytest.MonkeyPatch, pieces: list[str], width: int = 40, height: int = 30, **env: str) -> Screen:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(render, "terminal_size", lambda *_: os.terminal_size((width, height)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    markdown = render.Markdown()
    screen = Screen(width, height)
    for piece in pieces:
        markdown.write(piece)
        screen.feed(terminal.bytes.getvalue())  # as it comes: every moment must be one that a terminal can show
        terminal.bytes.seek(0)
        terminal.bytes.truncate()
    markdown.close()
    screen.feed(terminal.bytes.getvalue())
    return screen


def cut(text: str, n: int) -> list[str]:
    return [text[i : i + n] for i in range(0, len(text), n)]


@pytest.fixture(autouse=True)
def bare_newlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal's line discipline returns the carriage at a newline; here Screen does."""
    down = Screen._down

    def down_and_back(self: Any) -> None:
        down(self)
        self._column = 0

    monkeypatch.setattr(Screen, "_down", down_and_back)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 50, 10_000])
def test_form(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    screen = show(monkeypatch, cut(ANSWER, n))
    assert "\n".join(screen.lines) == SHOWN
    assert any("3" in style for style in screen.styles)


def test_the_first_piece_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(render, "terminal_size", lambda *_: os.terminal_size((40, 30)))
    markdown = render.Markdown()
    markdown.write("The sky")
    assert terminal.bytes.getvalue() == b"The sky"


def test_a_block_taller_than_the_screen_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "**bold**\n" + "\n".join(f"line {i}  " for i in range(12)) + "\n\nnext *one*\n"
    screen = show(monkeypatch, cut(text, 5), height=8)
    assert screen.lines == ["**bold**", *(f"line {i}" for i in range(12)), "", "", "next one"]


def test_a_terminal_of_another_size_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    width = 40
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(render, "terminal_size", lambda *_: os.terminal_size((width, 30)))
    markdown = render.Markdown()
    markdown.write("**bold**\n\n**more**")
    width = 20
    markdown.write("\n\n")
    markdown.close()
    assert terminal.bytes.getvalue().endswith(b"\x1b[0m\n\n**more**\n\n")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", 0),
        ("a" * 10, 0),  # the cursor waits in the last column
        ("a" * 11, 1),
        ("a\nb\n", 2),
        ("日本語日本語", 1),
        ("a日本語日本語", 1),  # a wide one does not fit into the last cell
        ("a日本語日本" + "語日本語日", 2),
        ("ok 🙂", 0),
        ("e\u0301", None),
        ("👩\u200d💻", None),
        ("⚠", None),
    ],
)
def test_rows(text: str, rows: int | None) -> None:
    assert render.rows_below(text, 10) == rows


def test_control_characters_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = show(monkeypatch, ["a \x1b[2J [x](\x1b]8;;http://evil\x07) b\n"])
    assert "␛[2J" in screen.lines[0]


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = show(monkeypatch, [ANSWER], NO_COLOR="1")
    assert "\n".join(screen.lines) == SHOWN
    codes = {code for style in screen.styles for code in style[2:-1].split(";")}
    assert codes <= {"", "0", "1", "2", "3", "4", "7", "9"}
