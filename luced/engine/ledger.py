"""What a model takes of the memory, and why, before it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luced.device.choose import choose
from luced.device.values import aligned
from luced.engine import loader
from luced.engine.runner import Runner


@dataclass(frozen=True)
class Owner:
    """Who holds memory, and what decides how much."""

    name: str
    n_bytes: int
    why: str


@dataclass(frozen=True)
class Ledger:
    """All the memory of one model. `n_ctx` is what fits, of `n_ctx_trained`."""

    architecture: str
    device: str
    device_name: str
    passed_over: tuple[str, ...]  # by `auto`, and why
    isa: str
    n_ctx: int
    n_ctx_trained: int
    kv_type: str
    owners: tuple[Owner, ...]
    free_bytes: int

    @property
    def n_bytes(self) -> int:
        return sum(owner.n_bytes for owner in self.owners)


def plan(path: Path, *, device: str = "auto", isa: str = "auto", n_threads: int = 0, **options: Any) -> Ledger:
    """On a device of choose.py; options are loader.load's. ModelError: there is no such device, the file cannot be
    used, or the context does not fit."""
    opened, passed_over = choose(device, isa, n_threads)
    try:
        runner = loader.record(path, opened, loader.Wants(**options))
        try:
            return Ledger(
                architecture=runner.architecture,
                device=opened.name,
                device_name=opened.device_name,
                passed_over=passed_over,
                isa=opened.isa,
                n_ctx=runner.n_ctx,
                n_ctx_trained=runner.spec.n_ctx,
                kv_type=runner.kv_type,
                owners=tuple(_owners(runner)),
                free_bytes=opened.free_bytes(),
            )
        finally:
            runner.close()
    finally:
        opened.close()


def _owners(runner: Runner) -> Iterator[Owner]:
    memory = runner.memory
    yield Owner("weights", memory["weights"], f"in the order that {runner.device.isa} reads best")
    where = "where the file is mapped" if runner.device.name == "cpu" else "as they are in the file"
    yield Owner("weights mapped", memory["weights_mapped"], f"read {where}")
    left = {s.name: aligned(s.n_bytes) for s in runner.tape.storages("cache")}
    for group, spec in zip(runner.groups, runner.spec.groups, strict=True):
        n_bytes = sum(left.pop(name) for name in [name for name in left if name.startswith(f"{group.name}.")])
        why = f"{group.n_pages} pages of {runner.page_size} tokens in {len(spec.layers)} layers"
        yield Owner(f"kv {group.name}", n_bytes, why + (f" that see {group.window} tokens" if group.window else ""))
    if (r := runner.spec.recurrent) is not None:
        for name in [name for name in left if name.endswith("_state")]:
            del left[name]
        yield Owner("states", memory["states"], f"{runner.n_states} slots of {r.state_bytes} bytes: running and cached")
    yield Owner("counts", sum(left.values()), f"of tokens, for the penalties of {runner.n_seqs} sequences")
    yield Owner("activations", memory["activations"], f"of a step of {runner.n_batch} rows")
    yield Owner("inputs", memory["inputs"], f"of a step, and the states of {runner.n_seqs} sequences")
    yield Owner("workspaces", memory["workspaces"], f"of kernels on {runner.device.n_threads} threads")
