"""Tables on the terminal and in pipes."""

from __future__ import annotations

import sys
from typing import Any

import click


def model_cells(row: dict[str, Any]) -> list[str]:
    """The cells of one row of luced.front.shelf."""
    if row["problem"]:
        return [row["name"], "", "", "", size(row["bytes"]), "", "not in order: see --check"]
    return [
        row["name"],
        row["architecture"],
        row["quantisation"],
        f"{row['parameters'] / 1e9:.2f} B" if row["parameters"] >= 1e9 else f"{row['parameters'] / 1e6:.0f} M",
        size(row["bytes"]),
        str(row["context"] or "?"),
        _notes(row),
    ]


def _notes(row: dict[str, Any]) -> str:
    notes = ["default"] if row["default"] else []
    notes += [f"alias {alias}" for alias in row["aliases"]]
    return ", ".join([*notes, *(f"{name}={value}" for name, value in row["settings"].items())])


def size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """With rules on a terminal, else plain aligned columns that awk can read."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*head, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            table.add_row(*row)
        Console().print(table, markup=False)
    else:
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for row in [head, *rows]:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
