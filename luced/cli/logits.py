"""luced logits"""

from __future__ import annotations

import os
from pathlib import Path

import click

from luce_shell.kv_type import kv_option
from luced.cli.options import (
    complete_model,
    device_option,
    find,
    isa_option,
    load_config,
    model_dirs_option,
    numbers,
    tell_device,
    threads_option,
)


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--tokens", metavar="ID,ID", required=True, help="The token ids to run.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The .npy file to write.")
@kv_option("f32")
@device_option
@threads_option
@isa_option
@model_dirs_option
def logits(
    model: str,
    tokens: str,
    out: Path,
    kv: str,
    device: str | None,
    threads: int | None,
    isa: str | None,
    model_dirs: tuple[Path, ...],
) -> None:
    """Write the logits of every position as a float32 array [n_tokens, n_vocab]. Needs no daemon."""
    ids = numbers("--tokens", tokens)
    if not os.access(out.parent, os.W_OK):
        raise click.BadParameter(f"{out.parent} is no folder that can be written to", param_hint="--out")
    entry = find(model, model_dirs)
    import numpy

    from luced.engine import offline

    values = offline.logits(
        entry.path,
        ids,
        kv_type=kv,
        device=load_config(device=device).device,
        n_threads=threads or 0,
        isa=isa or "auto",
        tell=tell_device,
    )
    with out.open("wb") as file:
        numpy.save(file, values)
