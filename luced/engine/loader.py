"""From a model file to a resident model: check, plan the memory, take it, fill it; progress all the way."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from luced import models
from luced.device.device import Device
from luced.device.values import BLOCKS, ShapeError, Storage, aligned, n_bytes
from luced.engine.plan import GroupSpec, kv_types
from luced.engine.runner import STEP, Limits, Runner
from luced.errors import EngineError, ModelError
from luced.gguf import digests
from luced.gguf.reader import File, open_gguf
from luced.models.spec import Group, Spec
from luced.models.weights import Weights

PAGE_SIZE = 32
MIN_CTX = 512  # of a model whose context was not asked for
N_SEQS = 64  # sequences of a step
SHARE_OF_FREE = 0.5  # of what is free beside the weights: what KV pages take at most, unless told
SHARE_OF_STATES = 0.2  # and what recurrent states take
N_CHECKPOINTS = 64  # states that the prefix cache has room for beside N_SEQS that run
N_WINDOWS = 16  # sequences whose windows fit side by side
CHECK_S = 0.002  # waited for the check of the file, between two steps of other models
PACK_BYTES = 4 << 20  # packed between two reports of progress


@dataclass(frozen=True)
class Wants:
    """What a model is loaded with. n_ctx 0: as trained, or less where memory is short; *_bytes 0: a share of that."""

    n_ctx: int = 0
    kv_type: str = "f16"
    n_batch: int = 512
    cache_bytes: int = 0
    state_bytes: int = 0


DEFAULT = Wants()


def load(path: Path, device: Device, wants: Wants = DEFAULT) -> Generator[tuple[int, int], None, Runner]:
    """Yields (done, total) bytes of weights; returns the model.

    ModelError: the file is wrong or of no supported kind, or does not fit.
    """
    runner = record(path, device, wants)
    try:
        _check_fits(runner)
        total = _tensor_bytes(runner.weights.file)
        yield 0, total
        yield from _fill_checked(runner)
        for _ in runner.allocate():
            yield total, total
    except BaseException:
        runner.close()
        raise
    return runner


def record(path: Path, device: Device, wants: Wants = DEFAULT) -> Runner:
    """The model as `load` would make it, with its ledger, before any memory is taken.

    ModelError: the file is wrong or of no supported kind, or the context does not fit.
    """
    file = open_gguf(path)
    try:
        runner = _record(file, device, wants)
        try:
            runner.memory = _ledger(runner)
        except EngineError as error:  # the library looks at each call: what the ops have let through is not for it
            raise ModelError("bad_model_file", f"{file.path}: {error}", file=str(file.path)) from error
    except BaseException:
        file.close()
        raise
    return runner


def _record(file: File, device: Device, wants: Wants) -> Runner:
    m = file.metadata
    architecture = m.str("general.architecture")
    if architecture not in models.ARCHITECTURES:
        known = ", ".join(models.ARCHITECTURES)
        raise ModelError("unsupported_model", f"{file.path}: architecture {architecture!r} is not one of {known}")
    module = models.load(architecture)
    weights = Weights(file, device.packed_bytes)
    n_vocab = weights["token_embd.weight"].ne[-1]
    with _blaming(file):
        spec: Spec = module.spec(m, n_vocab)
    if not spec.groups:
        raise ModelError("unsupported_model", f"{file.path}: layers of {architecture} have one number of key heads")
    if unread := m.unread(f"{architecture}."):
        raise ModelError("unsupported_model", f"{file.path}: luced does not know what {', '.join(unread)} asks for")
    if wants.n_ctx > spec.n_ctx:
        raise ModelError(
            "unsupported_model",
            f"the model was trained for {spec.n_ctx} tokens of context, not {wants.n_ctx}",
            "ask for a shorter context",
        )
    k_type, v_type = kv_types(wants.kv_type)
    sizes = {(g.head_dim, g.kept or k_type) for g in spec.groups} | {
        (g.head_dim_v, g.kept or v_type) for g in spec.groups
    }
    for n, kept in sizes:
        if n % BLOCKS[kept][0]:
            raise ModelError("unsupported_model", f"heads of {n} values cannot be kept as {kept}")
    page_size = math.lcm(PAGE_SIZE, *(g.ratio for g in spec.groups))  # whole cells of every group
    n_ctx, groups = _plan_cache(weights, spec, device, wants, page_size)
    limits = Limits(
        n_ctx, wants.n_batch, N_SEQS, page_size, wants.kv_type, _n_states(weights, spec, device, wants.state_bytes)
    )
    with _blaming(file):
        runner = Runner(device, spec, module, weights, groups, limits, models.ARCHITECTURES[architecture].capabilities)
    if weights.unused():
        names = ", ".join(weights.unused()[:5])
        raise ModelError("unsupported_model", f"{file.path}: {architecture} has no use for the tensors {names}")
    return runner


@contextmanager
def _blaming(file: File) -> Iterator[None]:
    """ModelError: sizes that do not fit each other, or numbers that nothing can be computed from.

    Only around what is computed from the file alone, so that the numbers used are its own;
    their types have been checked, so a TypeError is a bug of ours.
    """
    try:
        yield
    except ShapeError as error:
        raise ModelError("bad_model_file", f"{file.path}: {error}", file=str(file.path)) from error
    except (ArithmeticError, LookupError, ValueError) as error:
        what = f"{file.path}: its metadata and tensors contradict each other ({type(error).__name__}: {error})"
        raise ModelError("bad_model_file", what, file=str(file.path)) from error


def _plan_cache(
    weights: Weights, spec: Spec, device: Device, wants: Wants, page_size: int
) -> tuple[int, tuple[GroupSpec, ...]]:
    """The context that fits, and pages for each group: the full group's are what is left after the windows'."""
    k_type, v_type = kv_types(wants.kv_type)
    page_bytes = {}
    for g in spec.groups:
        head_bytes = n_bytes(g.kept or k_type, [g.head_dim]) + n_bytes(g.kept or v_type, [g.head_dim_v])
        page_bytes[g.name] = page_size // g.ratio * g.n_head_kv * head_bytes * len(g.layers)
    wanted = wants.n_ctx or spec.n_ctx
    n_weights = weights.n_bytes()
    free = device.free_bytes()
    budget = wants.cache_bytes or int(max(0, free - n_weights) * SHARE_OF_FREE)
    # Enough for four conversations of full length, or for what there is.
    n_full = 4 * _pages(wanted, page_size)
    windowed = [g for g in spec.groups if g.window]
    n_window = {g.name: min(n_full, N_WINDOWS * _window_pages(g, wants.n_batch, page_size)) for g in windowed}
    near_bytes = sum(n * page_bytes[name] for name, n in n_window.items())
    budget -= near_bytes
    full = [g for g in spec.groups if not g.window]
    per_page = sum(page_bytes[g.name] for g in full)
    if per_page:
        n_full = max(0, min(n_full, budget // per_page))
    fits = min(wanted, (n_full - 1) * page_size)  # one page spare, for copies on write
    least = min(wanted, wants.n_ctx or MIN_CTX)
    if fits < least:
        facts = {"n_ctx": wanted}
        if not wants.cache_bytes:  # else it is not free memory that is lacking
            facts["lack_bytes"] = (
                int((_pages(least, page_size) * per_page + near_bytes) / SHARE_OF_FREE) + n_weights - free
            )
        raise ModelError(
            "no_memory",
            f"{wanted} tokens of context need {_pages(wanted, page_size) * per_page >> 20} MiB of KV pages,"
            f" {max(0, budget) >> 20} MiB are free beside {n_weights >> 20} MiB of weights",
            "",
            **facts,
        )
    groups = tuple(GroupSpec(g.name, n_window.get(g.name, n_full), g.window, g.ratio) for g in spec.groups)
    return fits, groups


def _n_states(weights: Weights, spec: Spec, device: Device, state_bytes: int) -> int:
    """Slots of recurrent states: for all sequences of a step and the prefix cache, or what fits."""
    if spec.recurrent is None:
        return 0
    budget = state_bytes or int(max(0, device.free_bytes() - weights.n_bytes()) * SHARE_OF_STATES)
    return max(2, min(N_SEQS + N_CHECKPOINTS, budget // spec.recurrent.state_bytes))


def _tensor_bytes(file: File) -> int:
    return sum(t.n_bytes for t in file.tensors.values())


def _pages(n_tokens: int, page_size: int) -> int:
    return -(-n_tokens // page_size) + 1


def _window_pages(group: Group, n_batch: int, page_size: int) -> int:
    """Pages that one sequence needs while a chunk passes through the window."""
    return _pages(group.window + n_batch, page_size) + 1


def _ledger(runner: Runner) -> dict[str, int]:
    """Bytes by owner."""
    packed, rows = _weights(runner)
    cache = dict.fromkeys(s for t in runner.tapes for s in t.storages("cache"))
    state_bytes = runner.n_states * (runner.spec.recurrent.state_bytes if runner.spec.recurrent else 0)
    inputs = [s for t in runner.tapes for s in t.storages("constant", *STEP)]
    return {
        "weights": sum(aligned(s.n_bytes) for s in packed),
        "weights_mapped": sum(s.n_bytes for s in rows),
        "kv": sum(aligned(s.n_bytes) for s in cache) - state_bytes,
        **({"states": state_bytes} if state_bytes else {}),
        "activations": runner.tape.plan_activations()[1],
        "inputs": sum(aligned(s.n_bytes) for s in dict.fromkeys(inputs)),
        "workspaces": sum(runner.device.workspace_bytes(calls) for calls in runner.recorded),
    }


def _check_fits(runner: Runner) -> None:
    """ModelError: the model needs more than there is."""
    need, free = sum(runner.memory.values()), runner.device.free_bytes()
    if need > free:
        ledger = ", ".join(f"{name} {n >> 20} MiB" for name, n in runner.memory.items())
        raise ModelError(
            "no_memory",
            f"the model needs {need >> 20} MiB ({ledger}), {free >> 20} MiB are free of {runner.device.device_name}",
            lack_bytes=need - free,
        )


def _weights(runner: Runner) -> tuple[list[Storage], list[Storage]]:
    """(packed ones, those read where the file is mapped)."""
    storages = runner.tape.storages("weight")
    return [s for s in storages if s.packs is not None], [s for s in storages if s.packs is None]


def _fill_checked(runner: Runner) -> Generator[tuple[int, int], None, None]:
    """Fills it, while threads compare the file with its digests, where that is due. ModelError: bytes are wrong."""
    due = [path for path in runner.weights.file.paths if digests.is_due(path)]
    with digests.Check(due) as check:
        done = (0, 0)
        for done in _fill(runner):
            yield done
        while not check.wait(CHECK_S):
            yield done
        check.raise_if_bad()
    for path in due:
        digests.mark_checked(path)
    runner.weights.file.let_go()  # most of it was read to be packed


def _fill(runner: Runner) -> Generator[tuple[int, int], None, None]:
    packed, rows = _weights(runner)
    device = runner.device
    runner.hold(device.allocate(packed))
    # A tied embedding table is packed and read as it is: it counts once. What no tape reads is done at once.
    left = {s.packs.storage for s in packed if s.packs is not None}
    total = _tensor_bytes(runner.weights.file)
    done = total - sum(s.n_bytes for s in left | set(rows))
    for s in rows:
        for n_done in device.bind(s):
            done += n_done if s not in left else 0
            yield done, total
    for s in packed:
        assert s.packs is not None
        n_rows, row_bytes = s.packs.ne[1], s.packs.nb[1]
        step = max(16, PACK_BYTES // row_bytes // 16 * 16)
        for begin in range(0, n_rows, step):
            end = min(n_rows, begin + step)
            device.pack(s, begin, end)
            done += (end - begin) * row_bytes
            yield done, total
