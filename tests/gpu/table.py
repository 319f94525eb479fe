"""The table of docs/benchmarks/h200.md: `python -m tests.gpu.table BUILD.jsonl ...`, lines of `luced bench --json`.

One row for each model and test, one group of columns for each build, which has the name of its file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

CELLS = ("tokens/s", "llama.cpp", "ratio", "of the floor", "mJ/token")


def cells(row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [""] * len(CELLS)
    forms = {"tok_s": ".1f", "peer_tok_s": ".1f", "ratio": ".2f", "share_of_floor": ".0%"}
    told = [format(row[name], form) if row[name] is not None else "" for name, form in forms.items()]
    return [*told, f"{1e3 * row['j_per_token']:.1f}" if row["j_per_token"] is not None else ""]


def table(builds: dict[str, list[dict[str, Any]]]) -> list[str]:
    """In Markdown."""
    by_build = {build: {(row["model"], row["test"]): row for row in rows} for build, rows in builds.items()}
    keys = dict.fromkeys(key for rows in by_build.values() for key in rows)
    head = ["model", "test", *(f"{build} {name}" for build in builds for name in CELLS)]
    lines = [head, ["---"] * len(head)]
    lines += [[*key, *(cell for rows in by_build.values() for cell in cells(rows.get(key)))] for key in keys]
    return [f"| {' | '.join(line)} |" for line in lines]


@click.command(help=__doc__)
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    builds = {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in files}
    click.echo("\n".join(table(builds)))


if __name__ == "__main__":
    main()
