"""luced plan"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from luce_shell.kv_type import kv_option
from luced.cli.exits import EXIT_STATUS, fail
from luced.cli.options import (
    catalogue_of,
    complete_model,
    device_option,
    isa_option,
    load_config,
    model_dirs_option,
)
from luced.cli.table import print_table

MIB = 1 << 20


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--ctx", type=click.IntRange(1), help="Tokens of context. Default: as trained, or what fits.")
@click.option("--batch", type=click.IntRange(1), help="Most tokens of a step. Default: 512.")
@kv_option(None, "f16")
@device_option
@isa_option
@model_dirs_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def plan(
    model: str,
    ctx: int | None,
    batch: int | None,
    kv: str | None,
    device: str | None,
    isa: str | None,
    model_dirs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Tell what MODEL (a name or a file) would take of the memory, and why, without loading it.

    Exit 78: it does not fit. What the daemon holds counts as taken: of a model that is loaded, this plans a second one.
    """
    settings = load_config(model_dirs, n_ctx=ctx, n_batch=batch, kv_type=kv, device=device, isa=isa)
    entry = catalogue_of(settings).find(model)
    own = settings.of_model(entry.names)
    n_ctx = ctx or own.get("n_ctx", settings.n_ctx)
    from luced.engine import ledger

    found = ledger.plan(
        entry.path,
        device=settings.device,
        isa=settings.isa,
        n_threads=settings.n_threads,
        n_ctx=n_ctx,
        kv_type=kv or own.get("kv_type", settings.kv_type),
        n_batch=settings.n_batch,
        cache_bytes=settings.cache_bytes,
        state_bytes=settings.state_bytes,
    )
    fits = found.n_bytes <= found.free_bytes
    if as_json:
        click.echo(json.dumps({"model": entry.name, **asdict(found), "n_bytes": found.n_bytes, "fits": fits}))
    else:
        rows = [[owner.name, _mib(owner.n_bytes), owner.why] for owner in found.owners]
        rows += [["all", _mib(found.n_bytes), ""], ["free", _mib(found.free_bytes), f"of {found.device_name}"]]
        print_table(["owner", "MiB", "why"], rows)
        if found.n_ctx == found.n_ctx_trained:
            why = "what the model was trained for"
        else:
            why = "as asked" if n_ctx else f"of {found.n_ctx_trained}: more does not fit"
        click.echo(f"\nA request may have {found.n_ctx} tokens ({why}), kept as {found.kv_type}.")
    if not fits:
        short = f"{(found.n_bytes - found.free_bytes) / MIB:.0f} MiB are missing"
        fail(
            f"{entry.name} does not fit: {short}",
            "use less --ctx or another --kv, or free memory",
            EXIT_STATUS["operator"],
        )


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / MIB:9.1f}"
