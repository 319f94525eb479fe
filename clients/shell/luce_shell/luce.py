"""luce: what the daemon has and does."""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import asdict
from typing import Any, NoReturn

import click

from luce import Client, Model, Status, __version__
from luce.messages import TOPICS
from luce.paths import find_socket
from luce.results import Loaded
from luce_shell.kv_type import kv_option
from luce_shell.logs import logs
from luce_shell.models import complete_loaded, complete_model
from luce_shell.program import EPILOG, SETTINGS, json_option, run, say, to_json
from luce_shell.table import duration, print_table, size, write
from luce_shell.terminal import StatusLine

ID_CHARS = 12
SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("luce", "luce-ask", "luced")


@click.group(context_settings=SETTINGS, epilog=EPILOG)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Look at the daemon that keeps models warm, and at what was asked here.

    \b
    luce ps              the models in memory
    luce ls              the models that can be named
    luce logs -c         the last conversation

    Ask with luce-ask. With --json a command prints what the protocol calls so (docs/protocol.md), in one line.
    """


@cli.command()
@json_option
def ls(as_json: bool) -> None:
    """List the models that can be named."""
    with Client(name="luce ls") as client:
        models = client.models()
    if as_json:
        write(to_json({"models": [asdict(model) for model in models]}))
        return
    print_table(
        ["NAME", "ID", "SIZE", "TYPE", "CONTEXT", "STATE"],
        [[m.name, identity(m), size(m.bytes), m.quantisation, str(m.context or "?"), _state(m)] for m in models],
    )


@cli.command()
@json_option
def ps(as_json: bool) -> None:
    """List the models in memory."""
    with Client(name="luce ps") as client:
        status, models = client.status(), client.models()
    if as_json:
        write(to_json({"models": [asdict(loaded) for loaded in status.models]}))
        return
    ids = {model.name: identity(model) for model in models}
    rows = []
    for loaded in status.models:
        rows.append(
            [
                loaded.name,
                ids.get(loaded.name, ""),
                size(sum(loaded.memory.values())),
                processor(status),
                str(loaded.context),
                _until(loaded),
                str(loaded.requests),
                _kv(loaded),
            ]
        )
    print_table(["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "REQUESTS", "KV MiB"], rows)


@cli.command()
@click.argument("model", default="", shell_complete=complete_model)
@click.option("--ctx", type=click.IntRange(1), help="Tokens of context. Default: as configured.")
@kv_option(None, "as configured")
@click.option("--keep-alive", metavar="TIME", help="How long it stays when nobody asks it: 10m, 0, or -1 for ever.")
@json_option
def load(model: str, ctx: int | None, kv: str | None, keep_alive: str | None, as_json: bool) -> None:
    """Bring MODEL into memory, or change how long it stays there. For operators.

    Models that nobody uses make room where they must.
    """
    line = StatusLine(sys.stderr)
    try:
        with Client(name="luce load") as client:
            loaded = client.load(model, n_ctx=ctx, kv_type=kv, keep_alive=keep_alive, on_progress=line.show)
    finally:
        line.clear()
    if as_json:
        write(to_json(asdict(loaded)))
    else:
        write(f"{loaded.name}: {size(sum(loaded.memory.values()))}, {loaded.context} tokens, until: {_until(loaded)}\n")


@cli.command()
@click.argument("model", shell_complete=complete_loaded)
@click.option("--force", is_flag=True, help="End the requests that use it.")
@json_option
def unload(model: str, force: bool, as_json: bool) -> None:
    """Take MODEL out of memory. For operators. While requests use it, it stays, unless with --force."""
    _unload(model, force, as_json)


@cli.command()
@click.argument("model", shell_complete=complete_loaded)
@click.option("--force", is_flag=True, help="End the requests that use it.")
@json_option
def stop(model: str, force: bool, as_json: bool) -> None:
    """Take MODEL out of memory: unload, by the name that Ollama has for it."""
    _unload(model, force, as_json)


def _unload(model: str, force: bool, as_json: bool) -> None:
    with Client(name="luce unload") as client:
        unloaded = client.unload(model, force=force)
    if as_json:
        write(to_json({"unloaded": unloaded}))
    elif not unloaded:
        say(f"{model} was not in memory")


@cli.command()
@json_option
def status(as_json: bool) -> None:
    """Tell how the daemon is, and what it works on."""
    with Client(name="luce status") as client:
        found = client.status()
    if as_json:
        write(to_json(asdict(found)))
        return
    for name, value in _describe(found):
        write(f"{name:10}{value}\n")
    if found.requests:
        write("\n")
        print_table(
            ["ID", "CLIENT", "MODEL", "PHASE", "PROMPT", "GENERATED", "AGE"],
            [
                [str(r.id), r.client, r.model, r.phase, str(r.prompt), str(r.generated), duration(r.age_s)]
                for r in found.requests
            ],
        )


@cli.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", type=click.Choice(TOPICS))
@json_option
def subscribe(topics: tuple[str, ...], as_json: bool) -> None:
    """Print what happens, one JSON object in each line, until Ctrl-C.

    TOPIC is models, requests or degradations, any number of them; without one it is all. A user hears of its own
    requests, an operator of everybody's.
    """
    with Client(name="luce subscribe") as client, client.subscribe(*topics) as events:
        for event in events:
            write(to_json(asdict(event)))
            sys.stdout.buffer.flush()


@cli.command()
@json_option
def sockname(as_json: bool) -> None:
    """Print the socket that the commands here connect to."""
    path = str(find_socket())
    write(to_json({"path": path}) if as_json else f"{path}\n")


@cli.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes TAB complete our commands, their options and the names of models.

    \b
    bash   eval "$(luce completion bash)"        in ~/.bashrc
    zsh    eval "$(luce completion zsh)"         in ~/.zshrc, after compinit
    fish   luce completion fish | source         in ~/.config/fish/config.fish

    An installed package of luced has put it where the shells look already.
    """
    write("".join(completion_script(shell, program) for program in PROGRAMS))


cli.add_command(logs)


def completion_script(shell: str, program: str) -> str:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    completer = kind(cli, {}, program, variable)
    # Not its source(), which starts a bash to see how old it is.
    return (completer.source_template % completer.source_vars()).strip() + "\n"


def identity(model: Model) -> str:
    """Another one for another file, as far as its path and size tell."""
    return hashlib.sha256(f"{model.path}\0{model.bytes}".encode()).hexdigest()[:ID_CHARS]


def _until(loaded: Loaded) -> str:
    """In Ollama's words."""
    if loaded.until is None:
        return "Forever"
    left = loaded.until - time.time()
    return f"{duration(left)} from now" if left > 0 else "Stopping..."


def _kv(loaded: Loaded) -> str:
    """MiB of the KV cache that running requests hold, of all; ? where the engine is too busy to tell."""
    n_bytes, cache = loaded.memory.get("kv", 0), loaded.cache
    used = f"{n_bytes * cache.used / cache.pages / 2**20:.0f}" if cache else "?"
    return f"{used}/{n_bytes / 2**20:.0f}"


def processor(status: Status) -> str:
    """What the engine computes on. It has no other device than this, so nothing is ever elsewhere in secret."""
    if not status.engine.isa:
        return ""
    return "100% CPU" if status.engine.kind in (None, "cpu") else "100% GPU"


def _state(model: Model) -> str:
    if model.problem:
        return "not in order: luced models --check"
    return " ".join(filter(None, [model.state if model.state != "here" else "", "default" if model.default else ""]))


def _describe(status: Status) -> list[tuple[str, Any]]:
    engine = status.engine
    lines = [("daemon", f"luced {status.version}, pid {status.pid}, up {duration(status.uptime_s)}")]
    for name, socket in (("socket", status.socket), ("inference", status.inference_socket)):
        if socket is not None:
            group = f", group {socket.group}" if socket.group else ""
            lines.append((name, f"{socket.path} (mode {socket.mode}{group})"))
            lines += [("", socket.problem)] if socket.problem else []
    facts = [f"{engine.device} with {engine.isa}, {engine.threads} threads"] if engine.isa else []
    facts += [f"pid {engine.pid}"] if engine.pid else []
    facts += [f"started anew {engine.restarts} times"] if engine.restarts else []
    lines.append(("engine", ", ".join([engine.state, *facts])))
    lines += [("", f"not on {why}") for why in engine.passed_over]
    if engine.last_failure:
        lines.append(("", f"the last one {engine.last_failure}"))
    lines.append(("models", ", ".join(loaded.name for loaded in status.models) or "none in memory"))
    lines.append(("requests", str(len(status.requests)) if status.requests else "none"))
    return lines


def main() -> NoReturn:
    run(cli, "luce")


if __name__ == "__main__":
    main()
