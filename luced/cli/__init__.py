"""The command `luced`. Each command imports what it needs when it runs, so that --help and errors come at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

import luced
from luce.errors import LuceError
from luced import config
from luced.cli.table import model_cells, print_table

if TYPE_CHECKING:
    from luced.gguf.catalogue import Catalogue, Entry

ISAS = ("auto", "baseline", "avx2", "avx512")
KV_TYPES = ("f32", "f16", "bf16", "q8_0")
EXIT_STATUS = {"caller": 65, "peer": 76, "operator": 78, "supervisor": 70}  # sysexits.h, as luce-ask

F = TypeVar("F", bound=Callable[..., Any])

threads_option = click.option("--threads", type=click.IntRange(1), help="CPU threads. Default: one for each core.")
isa_option = click.option(
    "--isa", type=click.Choice(ISAS), help="Instruction set of the CPU kernels. Default: the best."
)
device_option = click.option("--device", type=click.Choice(("cpu",)), default="cpu", help="Where to compute.")
model_dirs_option = click.option(
    "--model-dir",
    "model_dirs",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    help="Folder of GGUF files, any number of times. Default: ~/.local/share/luce/models, /var/lib/luce/models.",
)


def kv_option(default: str) -> Callable[[F], F]:
    return click.option(
        "--kv", type=click.Choice(KV_TYPES), default=default, show_default=True, help="Type of the KV cache."
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Keeps one warm engine for the GGUF models of this machine and serves local clients over a Unix socket.

    Start the daemon with `luced serve`, then ask it something with `luce-ask 'question'`.
    """


@cli.command()
@click.option(
    "--socket", type=click.Path(path_type=Path), help="Where to listen. Default: $LUCE_SOCKET, or this user's own."
)
@click.option(
    "--ctx", type=click.IntRange(1), help="Tokens of context of each model. Default: what it was trained for."
)
@click.option("--batch", type=click.IntRange(1), help="Most tokens of a step. Default: 512.")
@click.option(
    "--load", "preload", metavar="MODEL", multiple=True, help="Load this model at once, not when it is first asked."
)
@click.option("--model", metavar="MODEL", help="The model that answers where the client names none.")
@kv_option("f16")
@device_option
@threads_option
@isa_option
@model_dirs_option
def serve(
    socket: Path | None,
    ctx: int | None,
    batch: int | None,
    preload: tuple[str, ...],
    model: str | None,
    kv: str,
    device: str,
    threads: int | None,
    isa: str | None,
    model_dirs: tuple[Path, ...],
) -> None:
    """Run the daemon, until SIGTERM or Ctrl-C.

    It is ready at once: a model is loaded when the first request for it comes.
    """
    import logging
    import resource

    from luced.front import listener

    settings = config.from_environment(
        socket=socket and socket.absolute(),
        n_batch=batch,
        n_ctx=ctx,
        default_model=model,
        kv_type=kv,
        device=device,
        n_threads=threads,
        isa=isa,
        model_dirs=model_dirs or None,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold prompts
    try:
        fd = settings.listen_fd
        listening = listener.listen(settings.socket) if fd is None else listener.inherit(fd)
    except listener.CannotListenError as error:
        fail(str(error), error.remedy, EXIT_STATUS["operator"])
    try:
        import trio  # only now: who connects in the meantime waits, and is not refused

        from luced.front import daemon

        trio.run(daemon.serve, settings, listening, preload)
    finally:
        listening.close()


@cli.command(hidden=True)
@click.option("--link-fd", type=int, required=True)
@click.option("--batch", type=int, default=512)
@click.option("--cache-bytes", type=int, default=0)
@click.option("--threads", type=int, default=0)
@device_option
@isa_option
def engine(link_fd: int, batch: int, cache_bytes: int, threads: int, device: str, isa: str | None) -> None:
    """Run the engine; `luced serve` starts it."""
    from luced.engine.worker import main as work

    settings = config.from_environment(
        n_batch=batch, cache_bytes=cache_bytes, n_threads=threads, device=device, isa=isa
    )
    work(link_fd, settings)


@cli.command()
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

        settings = config.from_environment()
        rows = describe_models(_catalogue(model_dirs), settings.default_model)
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


@cli.command()
@click.argument("model")
@click.option("-p", "n_prompt", metavar="N,N", default="512", show_default=True, help="Lengths of prompts to read.")
@click.option("-n", "n_generate", metavar="N,N", default="128", show_default=True, help="Numbers of tokens to write.")
@click.option("-r", "n_runs", type=click.IntRange(1), default=3, show_default=True, help="Times that each is measured.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each measurement and line.")
@threads_option
@isa_option
@model_dirs_option
def bench(
    model: str,
    n_prompt: str,
    n_generate: str,
    n_runs: int,
    as_json: bool,
    threads: int | None,
    isa: str | None,
    model_dirs: tuple[Path, ...],
) -> None:
    """Measure how fast MODEL (a name or a file) reads a prompt (pp) and writes (tg), in tokens a second.

    Runs an engine of its own: an idle daemon does not disturb it, a busy one does.
    """
    prompts, generated = _numbers("-p", n_prompt), _numbers("-n", n_generate)
    entry = _find(model, model_dirs)
    from luced.engine import offline

    measures = offline.bench(
        entry.path,
        n_prompt=prompts,
        n_generate=generated,
        n_runs=n_runs,
        n_threads=threads or 0,
        isa=isa or "auto",
    )
    if as_json:
        for m in measures:
            click.echo(json.dumps({"model": entry.name, **m.to_json()}))
    else:
        rows = [[entry.name, str(m.n_threads), m.test, f"{m.tok_s:.2f} ± {m.stddev:.2f}"] for m in measures]
        print_table(["model", "threads", "test", "tokens/s"], rows)


@cli.command()
@click.argument("model")
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
    device: str,
    threads: int | None,
    isa: str | None,
    model_dirs: tuple[Path, ...],
) -> None:
    """Write the logits of every position as a float32 array [n_tokens, n_vocab]. Needs no daemon."""
    ids = _numbers("--tokens", tokens)
    if not os.access(out.parent, os.W_OK):
        raise click.BadParameter(f"{out.parent} is no folder that can be written to", param_hint="--out")
    entry = _find(model, model_dirs)
    import numpy

    from luced.engine import offline

    values = offline.logits(entry.path, ids, kv_type=kv, n_threads=threads or 0, isa=isa or "auto")
    with out.open("wb") as file:
        numpy.save(file, values)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"luced {luced.__version__}")


def main() -> NoReturn:
    try:
        cli.main(prog_name="luced", standalone_mode=False)
    except LuceError as error:
        fail(str(error), error.remedy, EXIT_STATUS[error.code.actor])
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(0)


def fail(message: str, remedy: str, status: int) -> NoReturn:
    click.echo(f"luced: {message}", err=True)
    click.echo(f"  -> {remedy}", err=True)
    sys.exit(status)


def _catalogue(model_dirs: tuple[Path, ...]) -> Catalogue:
    from luced.gguf.catalogue import Catalogue

    return Catalogue(model_dirs or config.default_model_dirs())


def _find(model: str, model_dirs: tuple[Path, ...]) -> Entry:
    return _catalogue(model_dirs).find(model)


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise click.BadParameter(f"{text!r} is no list of whole numbers like 3,17,5", param_hint=option)
    return numbers
