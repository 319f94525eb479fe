"""luced bench, luced logits"""

from __future__ import annotations

import json
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
    tell_device,
    threads_option,
)
from luced.cli.table import print_table


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("-p", "n_prompt", metavar="N,N", default="512", show_default=True, help="Lengths of prompts to read.")
@click.option("-n", "n_generate", metavar="N,N", default="128", show_default=True, help="Numbers of tokens to write.")
@click.option("-r", "n_runs", type=click.IntRange(1), default=3, show_default=True, help="Times that each is measured.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each measurement and line.")
@device_option
@threads_option
@isa_option
@model_dirs_option
def bench(
    model: str,
    n_prompt: str,
    n_generate: str,
    n_runs: int,
    as_json: bool,
    device: str | None,
    threads: int | None,
    isa: str | None,
    model_dirs: tuple[Path, ...],
) -> None:
    """Measure how fast MODEL (a name or a file) reads a prompt (pp) and writes (tg), in tokens a second.

    Runs an engine of its own: an idle daemon does not disturb it, a busy one does.
    """
    prompts, generated = _numbers("-p", n_prompt), _numbers("-n", n_generate)
    entry = find(model, model_dirs)
    from luced.engine import offline

    measures = offline.bench(
        entry.path,
        n_prompt=prompts,
        n_generate=generated,
        n_runs=n_runs,
        device=load_config(device=device).device,
        n_threads=threads or 0,
        isa=isa or "auto",
        tell=tell_device,
    )
    if as_json:
        for m in measures:
            click.echo(json.dumps({"model": entry.name, **m.to_json()}))
    else:
        rows = [[entry.name, str(m.n_threads), m.test, f"{m.tok_s:.2f} ± {m.stddev:.2f}"] for m in measures]
        print_table(["model", "threads", "test", "tokens/s"], rows)


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
    ids = _numbers("--tokens", tokens)
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


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise click.BadParameter(f"{text!r} is no list of whole numbers like 3,17,5", param_hint=option)
    return numbers
