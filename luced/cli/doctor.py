"""luced doctor"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from luced.cli.exits import EXIT_STATUS
from luced.cli.options import catalogue_of, load_config

OK, WARNING, FAILURE = "ok", "warning", "failure"
SCHEMA_VERSION = 1

MIN_FREE_BYTES = 512 << 20  # of memory: the default model, with some context
MIN_DISK_BYTES = 2 << 30  # where models are pulled to
MIN_FILES = 1024  # open at once: a connection is one, and there may be 512
UNIT_FOLDERS = ("/etc/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "~/.config/systemd")
UNITS = ("luced.socket", "luced.service")


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it where it is not ok."""

    status: str
    summary: str
    remedy: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object: schema_version, status, checks.")
def doctor(as_json: bool) -> None:
    """Look at all that the daemon needs, and tell what to do where something is wrong.

    Exit 0: nothing fails, though there may be warnings. Exit 78: something fails.
    """
    found = {name: _run(check) for name, check in CHECKS.items()}
    statuses = {finding.status for finding in found.values()}
    worst = next(status for status in (FAILURE, WARNING, OK) if status in statuses)
    if as_json:
        checks = [{"id": name, **asdict(finding)} for name, finding in found.items()]
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, "status": worst, "checks": checks}))
    else:
        for name, finding in found.items():
            click.echo(f"{finding.status:8}  {name:8}  {finding.summary}")
            if finding.remedy:
                click.echo(f"{'':20}-> {finding.remedy}")
    if worst == FAILURE:
        sys.exit(EXIT_STATUS["operator"])


def _run(check: Callable[[], Finding]) -> Finding:
    from luce.errors import LuceError

    try:
        return check()
    except LuceError as error:
        return Finding(FAILURE, str(error), error.remedy)
    except Exception as error:  # one check that cannot be made hides no other
        return Finding(
            FAILURE, f"cannot be checked: {type(error).__name__}: {error}", "report this: it is a bug in luced"
        )


def _python() -> Finding:
    import importlib.metadata
    import platform

    libraries = [f"{name} {importlib.metadata.version(name)}" for name in ("trio", "msgpack", "numpy", "tokenizers")]
    return Finding(OK, f"Python {platform.python_version()} at {sys.executable}; {', '.join(libraries)}")


def _settings() -> Finding:
    sources = {source for source in load_config().sources.values() if source.startswith("/")}
    return Finding(OK, f"from {', '.join(sorted(sources))}" if sources else "all as built in: there is no luced.toml")


def _kernels() -> Finding:
    from luced.device.cpu import Cpu

    device = Cpu()
    try:
        summary = f"{device.device_name}: {device.isa}, {device.n_threads} threads"
        if device.isa == "baseline":
            return Finding(WARNING, summary, "this CPU has no AVX2: answers will be slow")
        return Finding(OK, summary)
    finally:
        device.close()


def _device() -> Finding:
    from luced.device import nvidia
    from luced.device.choose import choose

    asked = load_config().device
    device, passed_over = choose(asked)
    try:
        free = device.free_bytes()
        summary = f"{asked}: {device.name}, {device.device_name}, {free / 2**30:.1f} GiB are free"
    finally:
        device.close()
    if device.name != "cpu" and free < MIN_FREE_BYTES:  # the check of memory looks at the CPU's
        lack = f"{MIN_FREE_BYTES - free >> 20} MiB less than a small model needs"
        return Finding(WARNING, f"{summary}: {lack}", "end what holds the rest: nvidia-smi lists it")
    if not passed_over:
        return Finding(OK, summary)
    summary += f"; not on {'; '.join(passed_over)}"
    if not nvidia.is_here():
        return Finding(OK, summary)
    return Finding(WARNING, summary, 'put that right and restart luced, or say device = "cpu" in luced.toml')


def _memory() -> Finding:
    from luced.device.cpu import Cpu

    device = Cpu()
    free = device.free_bytes()
    device.close()
    if free < MIN_FREE_BYTES:
        return Finding(WARNING, f"{free >> 20} MiB are free", "end what takes the memory, or use small models")
    return Finding(OK, f"{free / 2**30:.1f} GiB are free")


def _socket() -> Finding:
    import grp
    import os

    from luce import Client, LuceError
    from luce.paths import find_socket
    from luced.front import listener

    path = find_socket()
    try:
        with Client(path, timeout=5, name="luced doctor") as client:
            socket = client.status().socket
        group = f"group {socket.group}" if socket.group else socket.problem
        return Finding(OK, f"luced {client.hello.version} listens at {path} ({socket.mode}, {group})")
    except LuceError as error:
        if error.name == "not_permitted":
            groups = {grp.getgrgid(gid).gr_name for gid in os.getgroups()}
            if listener.GROUP not in groups:
                return Finding(
                    FAILURE, str(error), f"usermod --append --groups {listener.GROUP} USER, and log in again"
                )
            return Finding(FAILURE, str(error), error.remedy)
        if error.name != "not_running":
            return Finding(FAILURE, f"what listens at {path} does not answer: {error}", "restart luced")
    if path.parent.exists():
        try:
            listener.check(path)
        except listener.CannotListenError as error:
            return Finding(FAILURE, str(error), error.remedy)
    if path.is_socket():
        return Finding(WARNING, f"{path} was left by a daemon that is gone", "start luced: it takes its place")
    return Finding(WARNING, f"no daemon listens at {path}", "start it: luced serve, or systemctl start luced")


def _models() -> Finding:
    from luced.errors import ModelError, RequestError

    settings = load_config()
    catalogue = catalogue_of(settings)
    entries = catalogue.entries()
    broken = []
    for entry in entries:
        try:
            entry.facts()
        except ModelError:
            broken.append(entry.name)
    if not entries:
        folders = ", ".join(str(folder) for folder in settings.search_path)
        return Finding(WARNING, f"there is no model in {folders}", "luced pull hf:OWNER/REPO, or put GGUF files there")
    if broken:
        return Finding(WARNING, f"{len(entries)} models; not in order: {', '.join(broken)}", "luced models --check")
    try:
        default = catalogue.find(settings.default_model).name
    except RequestError as error:
        return Finding(WARNING, f"the default model: {error}", "set default_model in luced.toml, or install it")
    return Finding(OK, f"{len(entries)}, all in order; the default is {default}")


def _log() -> Finding:
    from luce_shell import log
    from luce_shell.environment import log_path

    try:
        n = len(log.conversations(1))
        path = log_path()
    except (log.LogError, RuntimeError) as error:
        return Finding(
            WARNING, f"the conversation log cannot be read: {error}", "move the file away: a new one is made"
        )
    if not n:
        return Finding(OK, f"no conversation yet in {path}")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Finding(WARNING, f"others may open {path} (mode {mode:04o})", f"chmod 600 {path}")
    return Finding(OK, f"{path}, {path.stat().st_size / 2**20:.1f} MiB")


def _files() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MIN_FILES:
        return Finding(WARNING, f"{soft} files may be open at once", f"ulimit -n {min(hard, 4 * MIN_FILES)}")
    return Finding(OK, f"{soft} files may be open at once")


def _disk() -> Finding:
    import shutil

    folder = load_config().pull_dir
    there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(there).free
    summary = f"{free / 2**30:.1f} GiB are free for models in {folder}"
    if free < MIN_DISK_BYTES:
        return Finding(WARNING, summary, "remove models with luced rm, or set pull_dir in luced.toml")
    return Finding(OK, summary)


def _systemd() -> Finding:
    if not Path("/run/systemd/system").is_dir():
        return Finding(OK, "does not run here")
    folders = [Path(folder).expanduser() / kind for folder in UNIT_FOLDERS for kind in ("system", "user")]
    found = [folder / unit for folder in folders for unit in UNITS if (folder / unit).exists()]
    missing = [unit for unit in UNITS if unit not in {path.name for path in found}]
    if missing:
        summary = f"there is no unit {' and no '.join(missing)}"
        return Finding(WARNING, summary, "make install, in luced's source, installs both")
    return Finding(OK, ", ".join(map(str, found)))


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "settings": _settings,
    "kernels": _kernels,
    "device": _device,
    "memory": _memory,
    "socket": _socket,
    "models": _models,
    "log": _log,
    "files": _files,
    "disk": _disk,
    "systemd": _systemd,
}
