"""luced bench"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from luced.cli import peer as llama_bench
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
from luced.cli.table import print_table, size

if TYPE_CHECKING:
    from luced.engine.speed import Conditions, Measure


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("-p", "n_prompt", metavar="N,N", default="512", show_default=True, help="Lengths of prompts to read.")
@click.option("-n", "n_generate", metavar="N,N", default="128", show_default=True, help="Numbers of tokens to write.")
@click.option("--depth", metavar="N,N", default="0", show_default=True, help="Tokens before those that are measured.")
@click.option(
    "--batch", metavar="N,N", default="1", show_default=True, help="Sequences that write at once, a row of a step each."
)
@click.option("-r", "n_runs", type=click.IntRange(1), default=3, show_default=True, help="Times that each is measured.")
@click.option(
    "--peer",
    type=click.Path(exists=True, dir_okay=False, executable=True, path_type=Path),
    help="llama.cpp's llama-bench: it measures the same on the same file, and the ratio is told.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each measurement and line.")
@device_option
@threads_option
@isa_option
@model_dirs_option
def bench(
    model: str,
    n_prompt: str,
    n_generate: str,
    depth: str,
    batch: str,
    n_runs: int,
    peer: Path | None,
    as_json: bool,
    device: str | None,
    threads: int | None,
    isa: str | None,
    model_dirs: tuple[Path, ...],
) -> None:
    """Measure how fast MODEL (a name or a file) reads a prompt (pp) and writes (tg), in tokens a second.

    `tg128 x16 @4096` is 16 sequences that write 128 tokens each after 4096. For tg it also tells the share of the
    floor, which is how fast the bytes that a step must move could be copied on this device, and on a GPU the energy
    of a token.

    Runs an engine of its own: an idle daemon does not disturb it, a busy one does.
    """
    lengths = numbers("-p", n_prompt), numbers("-n", n_generate)
    depths, batches = numbers("--depth", depth), numbers("--batch", batch)
    if min(batches) < 1:
        raise click.BadParameter(f"{batch!r}: a step has one row at least", param_hint="--batch")
    entry = find(model, model_dirs)
    from luced.device.choose import choose
    from luced.engine import speed

    tests = [speed.Work("pp", n, d) for d in depths for n in lengths[0] if n]
    tests += [speed.Work("tg", n, d, rows) for d in depths for n in lengths[1] if n for rows in batches]
    if not tests:
        raise click.UsageError("there is nothing to measure: -p or -n must be more than 0")
    if n_ctx := entry.facts().n_ctx:  # of others the load tells
        for test in tests:
            speed.check_fits(test, n_ctx)
    chosen = choose(load_config(device=device).device, isa or "auto", threads or 0)
    tell_device(chosen)
    with closing(chosen.device):
        # Before ours: it needs the memory, and what is wrong with it is told at once.
        theirs = llama_bench.run(peer, entry.path, tests, chosen.device, n_runs) if peer else {}
        rows = []
        for found in speed.measure(entry.path, chosen.device, tests, n_runs):
            if isinstance(found, speed.Conditions):
                conditions = found
                _tell(conditions)
            elif as_json:
                row = {"model": entry.name, "device": chosen.device.name, **found.to_json()}
                row |= {"copy_bytes_s": conditions.copy_bytes_s, "load_s": conditions.load_s}
                their = _peer_rate(theirs, found)
                click.echo(json.dumps({**row, "peer_tok_s": their, "ratio": found.tok_s / their if their else None}))
            else:
                rows.append(found)
    if not as_json:
        _print(entry.name, rows, theirs)


def _tell(conditions: Conditions) -> None:
    """On stderr, as what device was chosen."""
    n, load_s = conditions.weight_bytes, conditions.load_s
    click.echo(f"  loaded {size(n)} in {load_s:.2f} s, {n / load_s / 1e9:.1f} GB/s", err=True)
    click.echo(f"  a copy moves {conditions.copy_bytes_s / 1e9:.1f} GB/s, read and written", err=True)
    if conditions.no_energy:
        click.echo(f"  no energy is measured: {conditions.no_energy}", err=True)


def _peer_rate(theirs: llama_bench.Rates, m: Measure) -> float | None:
    """None: llama-bench has no such test."""
    return theirs.get((m.kind, m.n_tokens, m.depth)) if m.n_rows == 1 else None


def _print(model: str, measures: list[Measure], theirs: llama_bench.Rates) -> None:
    """Columns that nothing is known for are left out."""
    table: dict[str, list[str]] = {
        "model": [model for _ in measures],
        "threads": [str(m.n_threads) for m in measures],
        "test": [m.test for m in measures],
        "tokens/s": [f"{m.tok_s:.2f} ± {m.stddev:.2f}" for m in measures],
    }
    peers = [_peer_rate(theirs, m) for m in measures]
    table["llama.cpp"] = [f"{peer:.2f}" if peer else "" for peer in peers]
    table["ratio"] = [f"{m.tok_s / peer:.2f}" if peer else "" for m, peer in zip(measures, peers, strict=True)]
    table["of the floor"] = [f"{m.share_of_floor:.0%}" if m.share_of_floor else "" for m in measures]
    table["mJ/token"] = [f"{1e3 * m.j_per_token:.3g}" if m.j_per_token is not None else "" for m in measures]
    table = {name: cells for name, cells in table.items() if any(cells)}
    print_table(list(table), [list(row) for row in zip(*table.values(), strict=True)])
