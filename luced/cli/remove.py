"""luced rm"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from luced.cli.exits import fail
from luced.cli.options import catalogue_of, complete_model, load_config
from luced.cli.table import size
from luced.config import SYSTEM_MODELS
from luced.gguf.catalogue import Entry
from luced.gguf.digests import path_of

NOT_OURS, USAGE, NOT_PERMITTED = 65, 2, 77


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: the files that were removed, and their bytes.")
def rm(model: str, yes: bool, as_json: bool) -> None:
    """Remove MODEL from pull_dir or /var/lib/luce/models, with all its parts and digests.

    A daemon that has it loaded keeps it until it unloads it. Models that lie elsewhere are not luced's to remove.
    """
    settings = load_config()
    entry = catalogue_of(settings).find(model)
    home = Path(os.path.realpath(entry.path.parent))
    ours = [Path(os.path.realpath(folder)) for folder in (settings.pull_dir, SYSTEM_MODELS)]
    folder = next((folder for folder in ours if entry.place == "folder" and home.is_relative_to(folder)), None)
    if folder is None:
        fail(f"{entry.name} is not luced's to remove: {entry.path}", _remedy(entry), NOT_OURS)
    files = [file for path in entry.paths for file in (path, path_of(path)) if file.is_file() or file.is_symlink()]
    if yes and model.lower().removesuffix(".gguf") not in entry.names and "/" + entry.path.name not in model:
        fail(f"{model!r} is not the whole name of a model", f"say it: luced rm --yes {entry.name}", NOT_OURS)
    if not yes:
        if not sys.stdin.isatty():
            fail("there is no terminal to ask on", f"say it: luced rm --yes {model}", USAGE)
        click.confirm(f"remove {entry.name} ({size(entry.n_bytes)}, {entry.path})?", abort=True, err=True)
    try:
        for file in files:
            file.unlink()
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", "run it as the owner of that folder", NOT_PERMITTED)
    _remove_empty(home, folder)
    if as_json:
        removed = {"removed": [str(file) for file in files], "bytes": entry.n_bytes}
        click.echo(json.dumps(removed, ensure_ascii=False))
    else:
        click.echo(f"removed {entry.name}, {size(entry.n_bytes)}")


def _remedy(entry: Entry) -> str:
    match entry.place:
        case "hub":
            return f"it is in the cache of huggingface-hub: hf cache rm model/{entry.repo}"
        case "package":
            return "it belongs to an installed package: uninstall that"
        case "folder":
            return "remove the file yourself, or take its folder out of model_dirs"


def _remove_empty(folder: Path, root: Path) -> None:
    """Folders that have become empty, up to `root`."""
    with suppress(OSError):  # it is not empty
        while folder != root:
            folder.rmdir()
            folder = folder.parent
