"""A draft tree in one step: each path of it has the logits that its tokens have in a row."""

from __future__ import annotations

import numpy as np
import pytest

from luced.engine.offline import chunk_of, resident, sequence_of
from luced.engine.plan import Chunk
from luced.engine.runner import Runner
from luced.engine.sequence import Table
from tests.models.cases import CASES, GOLDENS, N_VOCAB, tokens
from tests.models.parity_test import assert_near

PAST = 60  # more than a page and any window; a whole number of the sparse cells of deepseek4
N_NODES, TRUNK, N_PAGES = 24, 6, 8
NODES = [(31 * i + 7) % N_VOCAB for i in range(N_NODES)]


def tree(name: str) -> tuple[int, ...]:
    """A trunk, and nodes that hang on random ones before them."""
    # A draft of deepseek4 ends before it would complete a compressed cell.
    depth = 3 if CASES[name].architecture == "deepseek4" else 9
    random = np.random.default_rng(5)
    parents = list(range(-1, min(depth, TRUNK) - 1))
    depths = list(range(1, len(parents) + 1))
    while len(parents) < N_NODES:
        parent = int(random.integers(-1, len(parents)))
        if parent < 0 or depths[parent] < depth:
            parents.append(parent)
            depths.append(1 if parent < 0 else depths[parent] + 1)
    return tuple(parents)


def path_to(node: int, parents: tuple[int, ...]) -> list[int]:
    return [*path_to(parents[node], parents), node] if node >= 0 else []


def after(runner: Runner, past: list[int], rows: list[int], parents: tuple[int, ...] = ()) -> Chunk:
    """Rows after the past, whose cells and states are there and stay."""
    return chunk_of(runner, sequence_of(runner, past + rows), len(past), len(rows), parents=parents)._replace(stores=())


def elsewhere(runner: Runner, chunk: Chunk) -> Chunk:
    """The same with other pages and another state, for another sequence of the step."""
    s = chunk.sequence
    s.slot = 1
    s.tables = [Table("i", [page + N_PAGES for page in table]) for table in s.tables]
    slots = tuple(
        [slot + N_PAGES * runner.page_size // group.ratio for slot in own]
        for group, own in zip(runner.groups, chunk.slots, strict=True)
    )
    stores = tuple((i, 1) for i, _ in chunk.stores)
    return chunk._replace(slots=slots, stores=stores, source=1 if chunk.source >= 0 else -1)


@pytest.mark.parametrize("n_past", [0, PAST])
@pytest.mark.parametrize("name", CASES)
def test_paths_are_as_in_a_row(name: str, n_past: int) -> None:
    past, parents = tokens(CASES[name])[:n_past], tree(name)
    with resident(GOLDENS / f"{name}.gguf", kv_type="f32") as runner:
        if past:
            runner.forward_all(chunk_of(runner, sequence_of(runner, past), 0, n_past))
        ours = runner.forward_all(after(runner, past, NODES, parents))
        for node in range(N_NODES):
            path = path_to(node, parents)
            in_a_row = runner.forward_all(after(runner, past, [NODES[i] for i in path]))
            assert_near(ours[path], in_a_row, 1e-5)
            if path == list(range(len(path))):  # in the same cells too
                assert np.array_equal(ours[path], in_a_row)


@pytest.mark.parametrize("name", CASES)
def test_in_company_as_alone(name: str) -> None:
    """A tree beside a chunk of a prompt, a prompt beside a tree, and two trees."""
    past, parents = tokens(CASES[name])[:PAST], tree(name)
    with resident(GOLDENS / f"{name}.gguf", kv_type="f32") as runner:
        begun = chunk_of(runner, sequence_of(runner, past), 0, PAST)
        runner.forward_all(begun)
        runner.forward_all(elsewhere(runner, begun))
        kinds = [(NODES, parents), (NODES[:9], ())]
        alone = [runner.forward_all(after(runner, past, *kind)) for kind in kinds]
        for a, b in ((0, 1), (1, 0), (0, 0)):
            other = elsewhere(runner, after(runner, past, *kinds[b]))
            both = runner.forward_all(after(runner, past, *kinds[a]), other)
            assert np.array_equal(both, np.concatenate([alone[a], alone[b]])), (a, b)
