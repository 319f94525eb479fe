"""luced serve"""

from __future__ import annotations

from pathlib import Path

import click

from luce_shell.kv_type import kv_option
from luced.cli.exits import EXIT_STATUS, fail
from luced.cli.options import device_option, isa_option, load_config, model_dirs_option, threads_option


@click.command()
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
@kv_option(None, "f16")
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
    kv: str | None,
    device: str | None,
    threads: int | None,
    isa: str | None,
    model_dirs: tuple[Path, ...],
) -> None:
    """Run the daemon, until SIGTERM or Ctrl-C.

    It is ready at once: a model is loaded when the first request for it comes. What is not given here comes from the
    settings that `luced config` shows.
    """
    import functools
    import resource
    from contextlib import ExitStack, closing, suppress

    from luced.front import child, journal, listener

    read_config = functools.partial(
        load_config,
        model_dirs,
        socket=socket and socket.absolute(),
        n_batch=batch,
        n_ctx=ctx,
        default_model=model,
        kv_type=kv,
        device=device,
        n_threads=threads,
        isa=isa,
    )
    settings = read_config()
    journal.start(settings.has_journal)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold prompts
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # one for each connection
    fd, inference = settings.listen_fd, settings.inference_socket
    with ExitStack() as sockets:
        try:
            main = sockets.enter_context(
                closing(listener.listen(settings.socket) if fd is None else listener.inherit(fd))
            )
            other = sockets.enter_context(closing(listener.listen(inference))) if inference else None
        except listener.CannotListenError as error:
            fail(str(error), error.remedy, EXIT_STATUS["operator"])

        engine = None
        with suppress(OSError):  # then the supervisor tries, and tells
            engine = child.start_engine(child.command_of(settings))

        import trio  # only now: the engine starts meanwhile, and who connects waits and is not refused

        from luced.front import daemon

        trio.run(daemon.serve, settings, main, preload, other, engine, read_config)
