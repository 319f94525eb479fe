"""luced models"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from luced.cli.exits import EXIT_STATUS
from luced.cli.options import catalogue_of, load_config, model_dirs_option
from luced.cli.table import model_cells, print_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each model and line.")
@click.option("--architectures", is_flag=True, help="List the architectures that can be run instead.")
@click.option("--check", is_flag=True, help="Say what is wrong with each file; exit 78 if anything is.")
@model_dirs_option
def models(as_json: bool, architectures: bool, check: bool, model_dirs: tuple[Path, ...]) -> None:
    """List the models that can be named. Needs no daemon."""
    if architectures:
        from luced.models import ARCHITECTURES

        rows: list[dict[str, Any]] = [{"name": a.name, "models": a.models} for a in ARCHITECTURES.values()]
    else:
        from luced.front.shelf import describe_models

        settings = load_config(model_dirs)
        rows = describe_models(catalogue_of(settings), settings)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    elif architectures:
        print_table(["architecture", "models"], [[row["name"], row["models"]] for row in rows])
    elif not rows:
        click.echo(
            "There are no models. Put GGUF files into ~/.local/share/luce/models, or name a folder: --model-dir.",
            err=True,
        )
    elif check:
        print_table(["name", "state"], [[row["name"], row["problem"] or "in order"] for row in rows])
    else:
        print_table(
            ["name", "architecture", "type", "weights", "size", "context", ""],
            [model_cells(row) for row in rows],
        )
    if check and any(row["problem"] for row in rows):
        sys.exit(EXIT_STATUS["operator"])
