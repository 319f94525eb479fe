"""The architecture as a test: who may import whom (docs/architecture.md §3), and how long a file may be."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"luced": ROOT, "luce": ROOT / "clients/python", "luce_shell": ROOT / "clients/shell"}


class Part(NamedTuple):
    """A module, or a package with all that is in it: which other parts and which outside libraries it may import."""

    uses: str = ""
    libraries: str = ""


# From top to bottom. A module belongs to the longest name that it begins with.
PARTS = {
    "luce_shell": Part("luce", "click markdown_it rich"),
    "luced.__main__": Part("luced.cli"),
    "luced.cli": Part(
        "luced.front luced.text luced.engine luced.models luced.device luced.gguf luced.link luced.config luced.errors"
        " luced luce luce_shell",  # for the doctor, who looks at the conversation log too
        "click numpy rich trio",
    ),
    "luced.front": Part(
        "luced.text luced.gguf luced.link luced.config luced.errors luced luce",
        "trio prometheus_client httpx2 huggingface_hub",
    ),
    "luced.text.worker": Part("luced.text luced.gguf luced.errors luce"),
    "luced.text": Part("luced.gguf luced.errors", "tokenizers jinja2"),
    "luced.engine": Part(
        "luced.models luced.tape luced.ops luced.device luced.gguf luced.link luced.config luced.errors luce",
        "numpy llguidance",
    ),
    "luced.models": Part("luced.ops luced.tape luced.device.values luced.gguf luced.errors"),
    "luced.ops": Part("luced.tape luced.device.abi luced.device.values luced.gguf.formats luced.errors"),
    "luced.tape": Part("luced.oracle luced.device luced.gguf.formats luced.errors", "numpy"),
    "luced.oracle": Part("luced.device.abi luced.gguf.formats luced.errors", "numpy"),
    "luced.device": Part("luced.gguf.formats luced.errors", "ctypes numpy cuda hip"),
    "luced.gguf": Part("luced.errors"),
    "luced.link": Part("luce"),
    "luced.config": Part("luced.errors luce"),
    "luced.errors": Part("luce"),
    "luced": Part(),
    "luce.aio": Part("luce", "trio"),
    "luce": Part("luce.aio", "msgpack"),  # for luce.AsyncClient, when that is asked for
}
# Standard modules that are somebody's own.
RESERVED = {"ctypes", "asyncio"}
# Pure policy: no arrays, no clock but the one passed in.
PURE = {"luced.engine.scheduler", "luced.engine.pages", "luced.engine.prefix"}
IMPURE = {"numpy", "time", "random", "os", "threading"}
MAY_READ_ENVIRONMENT = {"luced.config", "luce.paths", "luce_shell.environment"}
# The wall clock may jump: it is for what is shown or kept, never for how long something takes.
MAY_READ_WALL_CLOCK = {
    *("luced.front.events", "luced.front.methods", "luced.front.resident", "luced.front.residency"),
    *(
        "luced.front.report",
        "luced.gguf.digests",
        "luced.text.chat",
        "luce_shell.ask",
        "luce_shell.log",
        "luce_shell.luce",
    ),
}
MAY_PRINT = {"luced.cli", "luce_shell"}

OPTIONAL = {"cuda"}  # of an extra, imported when it is asked for
MODULES = {"markdown-it-py": "markdown_it"}  # of distributions that do not have their name

MAX_LINES = 300
MAX_MODEL_LINES = 150
LONGER = {
    "kernels/include/luce.h": "the contract is one file",
    "luced/device/abi.py": "generated",
}


def modules() -> dict[str, str]:
    """Source of every module that we ship, by dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def part_of(module: str) -> str:
    """The part that a module belongs to."""
    while module not in PARTS:
        module = module.rpartition(".")[0]
    return module


def imports(module: str, source: str, known: Collection[str]) -> list[tuple[int, str]]:
    """(line, full name of a module) of each import, inside functions too. `known`: the modules there are."""
    found = []
    is_package = any(name.startswith(module + ".") for name in known)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                found.append((node.lineno, inner if inner in known else origin))
    return found


def wrong_imports(module: str, source: str, known: Collection[str]) -> list[str]:
    """Every import of the module that PARTS does not allow."""
    part = part_of(module)
    uses, libraries = PARTS[part].uses.split(), PARTS[part].libraries.split()
    wrong = []
    for line, target in imports(module, source, known):
        top = target.partition(".")[0]
        if top in PACKAGES:
            allowed = target in uses or part_of(target) in (*uses, part)
        elif top in sys.stdlib_module_names and top not in RESERVED:
            allowed = module not in PURE or top not in IMPURE
        else:
            allowed = top in libraries and not (module in PURE and top in IMPURE)
        if not allowed:
            wrong.append(f"{module}:{line} imports {target}; {part} may use: {' '.join(uses + libraries) or 'nothing'}")
    return wrong


def calls(source: str) -> list[tuple[int, str]]:
    """(line, name) of each name that is called, and of each attribute of `os`."""
    tree = ast.parse(source)
    found = [(n.lineno, n.func.id) for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    for n in ast.walk(tree):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "os":
            found.append((n.lineno, f"os.{n.attr}"))
    return found


def test_no_import_goes_up() -> None:
    known = modules()
    wrong = [w for module, source in known.items() for w in wrong_imports(module, source, known)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("luced.front.methods", "from luced.engine import scheduler"),
        ("luced.front.methods", "from ..engine.scheduler import plan"),
        ("luced.front.methods", "def f():\n    import numpy"),
        ("luced.text.chat", "from luced import tape"),
        ("luced.engine.worker", "from luced.text.chat import render"),
        ("luced.engine.worker", "import trio"),
        ("luced.engine.scheduler", "import time"),
        ("luced.engine.scheduler", "import numpy as np"),
        ("luced.models.llama", "from luced.device import cpu"),
        ("luced.ops", "import ctypes"),
        ("luced.gguf.reader", "import numpy"),
        ("luce.client", "import trio"),
        ("luce.client", "from luced.errors import RequestError"),
        ("luced.device.cpu", "from luced.tape import Tape"),
        ("luce_shell.ask", "import luced.config"),
    ],
)
def test_an_upward_import_is_seen(module: str, source: str) -> None:
    known = {module, "luced.engine.scheduler", "luced.tape", "luced.text.chat", "luced.device.cpu"}
    assert wrong_imports(module, source, known)


def test_every_part_is_there() -> None:
    names = modules()
    gone = [part for part in PARTS if not any(name == part or name.startswith(part + ".") for name in names)]
    assert not gone


def test_the_environment_is_read_in_one_place() -> None:
    readers = {
        f"{module}:{line}"
        for module, source in modules().items()
        for line, name in calls(source)
        if name in ("os.environ", "os.getenv", "os.environb") and module not in MAY_READ_ENVIRONMENT
    }
    assert not readers


def test_only_commands_print() -> None:
    printers = {
        f"{module}:{line}"
        for module, source in modules().items()
        for line, name in calls(source)
        if name == "print" and part_of(module) not in MAY_PRINT
    }
    assert not printers


def test_files_stay_small() -> None:
    folders = [folder / package for package, folder in PACKAGES.items()] + [ROOT / "kernels"]
    long = []
    for path in (
        p for folder in folders for p in folder.rglob("*") if p.suffix in {".py", ".cpp", ".h", ".cu", ".cuh"}
    ):
        name = path.relative_to(ROOT).as_posix()
        limit = MAX_MODEL_LINES if name.startswith("luced/models/") else MAX_LINES
        n_lines = len(path.read_text().splitlines())
        if n_lines > limit and name not in LONGER:
            long.append(f"{name} has {n_lines} lines, more than {limit}")
    assert not long, "\n".join(long)


def test_time_is_measured_by_a_clock_that_does_not_jump() -> None:
    reads = {module for module, source in modules().items() if re.search(r"time\.time(_ns)?\(|datetime\.now\(", source)}
    assert reads == MAY_READ_WALL_CLOCK


def outside(package: str, *, without: Collection[str] = ()) -> set[str]:
    """Top-level names of the libraries that modules of the package import."""
    known = modules()
    names = {
        target.partition(".")[0]
        for module, source in known.items()
        if module.startswith(package) and part_of(module) not in without
        for _, target in imports(module, source, known)
    }
    return names - set(PACKAGES) - sys.stdlib_module_names


def declared(pyproject: str) -> set[str]:
    dependencies = tomllib.loads((ROOT / pyproject).read_text())["project"]["dependencies"]
    return {MODULES.get(name := d.partition(">")[0], name.replace("-", "_")) for d in dependencies}


def test_what_is_imported_is_declared_and_no_more() -> None:
    assert outside("luce") - OPTIONAL == declared("pyproject.toml")


def test_the_client_alone_needs_msgpack_alone() -> None:
    assert outside("luce.", without={"luce.aio"}) == declared("clients/python/pyproject.toml") == {"msgpack"}


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    asked += [d for extra in project["project"]["optional-dependencies"].values() for d in extra]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {pin.partition("==")[0] for pin in pins if "==" in pin}
    assert {re.split("[<>=;]", d)[0].strip() for d in asked} <= pinned
