"""Columns that a person reads and awk can cut, and quantities in words."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from luce_shell.terminal import visible

GAP = "  "


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [list(head), *([visible(cell).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        write(GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def write(text: str) -> None:
    """To standard output, as UTF-8 whatever the locale says."""
    sys.stdout.buffer.write(text.encode())


def size(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


def duration(seconds: float) -> str:
    """Roughly, in one or two units."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"
