"""luced verify"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from luced.cli.exits import EXIT_STATUS
from luced.cli.options import catalogue_of, complete_model, load_config, model_dirs_option
from luced.cli.progress import reporter

WORDS = {
    "digests": "in order",
    "sha256": "in order",
    "header": "header in order; nothing is known of its other bytes (it was not fetched by luced)",
}


@click.command()
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each event and line: check, verdict.")
@model_dirs_option
def verify(model: str | None, as_json: bool, model_dirs: tuple[Path, ...]) -> None:
    """Read MODEL, or all models, and say which bytes are not what was fetched; exit 78 if any are.

    A model that `luced pull` fetched is compared chunk by chunk, one in the cache of huggingface-hub or in a package as
    a whole; of others only the header is checked.
    """
    from luced.gguf.verify import verify as check

    catalogue = catalogue_of(load_config(model_dirs))
    entries = [catalogue.find(model)] if model else catalogue.entries()
    has_problem = False
    with reporter(as_json) as report:
        for entry in entries:
            verdict = check(entry, lambda name, done, total: report("check", file=name, done=done, total=total))
            has_problem |= bool(verdict.problem)
            if as_json:
                row = {
                    "event": "verdict",
                    "name": entry.name,
                    "path": str(entry.path),
                    "checked": verdict.checked,
                    "problem": verdict.problem,
                    "remedy": verdict.remedy,
                    "ranges": [[str(bad.path), bad.begin, bad.end] for bad in verdict.ranges],
                }
                click.echo(json.dumps(row, ensure_ascii=False))
            elif verdict.problem:
                click.echo(f"{entry.name}: {verdict.problem}\n  -> {verdict.remedy}")
            else:
                click.echo(f"{entry.name}: {WORDS[verdict.checked]}")
    if has_problem:
        sys.exit(EXIT_STATUS["operator"])
