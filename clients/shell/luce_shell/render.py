"""Markdown on a terminal, as it comes.

A block (a paragraph, a list, fenced code, ...) is shown as it is while it grows. Once it is complete it is written over
with its form, unless its beginning has left the screen or where it ends there is not certain: then it stays.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import TYPE_CHECKING

from luce_shell.environment import wants_no_color
from luce_shell.terminal import Output, terminal_size, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$")
HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
ITEM = re.compile(r"\s*([-*+]|\d{1,9}[.)])\s")
PERHAPS_ITEM = re.compile(r"\s*([-*+]|\d{1,9}[.)]?)?")
SGR = re.compile(r"\x1b\[[0-9;]*m")
SPACES_AT_END = re.compile(r" +((?:\x1b\[0?m)?)$", re.M)
THEME = "ansi_dark"  # the terminal's own colours
TAB = "    "


class Markdown(Output):
    """Standard output, a terminal, that shows the form of Markdown."""

    def __init__(self) -> None:
        super().__init__()
        self._block = ""  # as it is on the screen
        self._line = ""  # the last of it, which has not ended
        self._held = ""  # not on the screen: begins another block, or goes on with the list
        self._fence = ""  # that is open
        self._is_list = self._may_end = self._has_blocks = False
        self._size = terminal_size(sys.stdout)

    def write(self, text: str) -> None:
        text = visible(text).replace("\t", TAB)
        while text:
            line, newline, text = text.partition("\n")
            self._add(line + newline)

    def close(self) -> None:
        self._show(self._held)
        if self._block:
            self._end_block()

    def _add(self, piece: str) -> None:
        """A line or a part of one."""
        if self._may_end:  # after a blank line in a list: is this its next item?
            self._held += piece
            if PERHAPS_ITEM.fullmatch(self._held):
                if piece.endswith("\n"):  # one more blank line
                    self._held = ""
                return
            piece, self._held, self._may_end = self._held, "", False
            if not piece.startswith(" ") and not ITEM.match(piece):
                self._end_block()
        if not self._block and not (self._line + piece).strip():  # blank lines between blocks
            self._line = "" if piece.endswith("\n") else self._line + piece
            return
        piece, self._line = (piece, self._line + piece) if self._block else (self._line + piece,) * 2
        self._show(piece)
        if piece.endswith("\n"):
            line, self._line = self._line.rstrip("\n"), ""
            self._take(line)

    def _take(self, line: str) -> None:
        """A line that has ended: does the block end with it?"""
        fence = FENCE.match(line)
        if self._fence:
            if fence and fence[1].startswith(self._fence) and not fence[2]:
                self._fence = ""
                if not self._is_list:
                    self._end_block()
        elif fence:
            self._fence = fence[1]
        elif ITEM.match(line):
            self._is_list = True
        elif not line.strip():
            self._may_end = self._is_list
            if not self._is_list:
                self._end_block()
        elif HEADING.match(line) and self._block.count("\n") == 1:
            self._end_block()

    def _show(self, text: str) -> None:
        if text and not self._block:
            self._size = terminal_size(sys.stdout)
            if self._has_blocks:
                self._put("\n")
        self._block += text
        self._put(text)

    def _end_block(self) -> None:
        block, self._block, self._line, self._fence = self._block, "", "", ""
        self._is_list, self._may_end, self._has_blocks = False, False, True
        n_rows = rows_below(block, self._size.columns)
        if terminal_size(sys.stdout) != self._size or n_rows is None or n_rows >= self._size.lines:
            self.break_line()
            return
        up = f"\x1b[{n_rows}A" if n_rows else ""
        self._put(f"\r{up}\x1b[J{form(block, self._size.columns)}")


def rows_below(text: str, width: int) -> int | None:
    """How many rows below its first one the cursor stands after `text`. None: terminals differ about it."""
    row = column = 0
    for char in text:
        if char == "\n":
            row, column = row + 1, 0
            continue
        n_cells = 1
        if char > "~":
            kind, width_class = unicodedata.category(char), unicodedata.east_asian_width(char)
            n_cells = 2 if width_class in "WF" else 1
            if kind in ("Mn", "Me", "Cf", "Sk", "Cn") or (kind == "So" and n_cells == 1):
                return None
        column += n_cells
        if column > width:
            row, column = row + 1, n_cells
    return row


def form(block: str, width: int) -> str:
    """A block of Markdown as a terminal shows it, with a newline at its end."""
    from rich.console import Console

    console = Console(width=width, force_terminal=True, no_color=wants_no_color(), highlight=False, emoji=False)
    lines = block.rstrip("\n").split("\n")
    fences = [i for i, line in enumerate(lines) if FENCE.match(line)]
    begin = fences[0] if fences and not any(ITEM.match(line) for line in lines[: fences[0]]) else len(lines)
    with console.capture() as capture:
        if begin:
            console.print(_markdown("\n".join(lines[:begin])))
        if begin < len(lines):
            _print_code(console, lines[begin:])
    shown = [line.rstrip() for line in SPACES_AT_END.sub(r"\1", capture.get()).split("\n")]
    while not SGR.sub("", shown[0]).strip() and len(shown) > 1:
        del shown[0]
    while not SGR.sub("", shown[-1]).strip() and len(shown) > 1:
        del shown[-1]
    return "\n".join(shown) + "\n"


def _markdown(text: str) -> RenderableType:
    """Without what would hide a part of the answer: HTML, and the addresses of images and links."""
    from markdown_it import MarkdownIt
    from rich.markdown import Heading
    from rich.markdown import Markdown as Rich

    class LeftHeading(Heading):
        LEVEL_ALIGN = dict.fromkeys(Heading.LEVEL_ALIGN, "left")

    class Plain(Rich):
        elements = {**Rich.elements, "heading_open": LeftHeading}  # noqa: RUF012

    shown = Plain("", code_theme=THEME, hyperlinks=False)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")
    shown.parsed = parser.parse(text)
    for token in shown.parsed:
        for inner in token.children or ():
            if inner.type == "softbreak":  # the lines of a poem
                inner.type = "hardbreak"
    return shown


def _print_code(console: Console, lines: list[str]) -> None:
    """Nothing but colour, so that it can be copied."""
    from rich.syntax import Syntax

    fence = FENCE.match(lines[0])
    assert fence is not None
    is_closed = len(lines) > 1 and lines[-1].strip().startswith(fence[1])
    code = "\n".join(lines[1:-1] if is_closed else lines[1:])
    console.print(lines[0], style="dim", markup=False, soft_wrap=True)
    if code:
        text = Syntax("", fence[2] or "text", theme=THEME, background_color="default").highlight(code)
        console.print(text, soft_wrap=True, end="" if text.plain.endswith("\n") else "\n")
    if is_closed:
        console.print(lines[-1], style="dim", markup=False, soft_wrap=True)
