"""The prefix cache: one tree of tokens for each tenant, whose nodes own the pages that hold those tokens' cells.

A node is one page of tokens. Only full nodes have children; a node with fewer tokens is the end of something. No node's
tokens are a prefix of a sibling's. A sequence that matches part of a page copies those cells; the page's own writer
goes on behind them, which a node does not see: cells are only ever appended.

In groups with a window a node may lack its page (-1), and of recurrent states there are few: a match is cut to where
every group can continue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableSequence, Sequence
from operator import itemgetter

from luced.engine.checkpoints import Checkpoints
from luced.engine.pages import Pool
from luced.engine.plan import GroupSpec

Tables = Sequence[MutableSequence[int]]

Key = tuple[int, ...]


class Node:
    """`tokens` at the depth of the node, for each group the page with their cells, or -1, and slots of the recurrent
    states after some of them."""

    __slots__ = ("children", "pages", "parent", "states", "tokens")

    def __init__(self, parent: Node | None, tokens: Key, pages: list[int]) -> None:
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.children: dict[Key, Node] = {}
        self.states: dict[int, int] = {}  # by the number of its tokens: a slot


class PrefixCache:
    """All pages are of `pools`; who matches a node holds its pages itself."""

    def __init__(
        self,
        groups: tuple[GroupSpec, ...],
        page_size: int,
        pools: list[Pool],
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """With `checkpoints` a match ends where a state is kept."""
        assert groups[0].window == 0, "the first cache group must not have a window"
        self._groups = groups
        self._page_size = page_size
        self._pools = pools
        self._checkpoints = checkpoints
        self._roots: dict[str, Node] = {}
        # Least recently used first. All nodes, children before their parents: the first that nobody uses is a leaf. For
        # each group with a window the nodes that have its page, parents first: what the window has left goes first.
        self._nodes: OrderedDict[Node, None] = OrderedDict()
        self._windowed: dict[int, OrderedDict[Node, None]] = {
            g: OrderedDict() for g, group in enumerate(groups) if group.window
        }
        self.n_evicted = 0  # nodes, and pages that nodes lost to a window's pool

    @property
    def n_nodes(self) -> int:
        return len(self._nodes)

    def match(self, tenant: str, tokens: list[int], limit: int) -> tuple[list[Node], int]:
        """The longest prefix of tokens[:limit] from which every group can continue: its nodes, its length."""
        size = self._page_size
        node = self._roots.get(tenant)
        path: list[Node] = []
        if node is None:
            return path, 0
        length = 0
        while length + size <= limit and (child := node.children.get(tuple(tokens[length : length + size]))):
            path.append(child)
            node = child
            length += size
        closest, n_common = _closest(node, tuple(tokens[length : min(length + size, limit)]))
        if closest is not None:
            path.append(closest)
            length += n_common
        path, length = self._continued(self._roots[tenant], tokens, path, length)
        return path[: -(-length // size)], length

    def insert(self, tenant: str, tokens: list[int], n_tokens: int, tables: Tables, path: list[Node]) -> Node | None:
        """Keeps the pages of `tables`, which hold the cells of tokens[:n_tokens]; gives the node of a last page that is
        not full.

        `path` holds the full nodes whose pages `tables` has already, and grows. Where the tree has a full page of the
        same tokens, that page replaces the one in `tables`. Who holds the pages of a path keeps its nodes in the tree.
        """
        if not n_tokens:
            return None
        size = self._page_size
        node = path[-1] if path else self._roots.setdefault(tenant, Node(None, (), []))
        while len(path) * size < n_tokens:
            i = len(path)
            key = tuple(tokens[i * size : min(n_tokens, (i + 1) * size)])
            node = self._child(node, key)
            if len(node.tokens) == len(key):  # else the tree knows more than these tokens
                self._share(node, i, tables)
            if len(key) < size:
                return node
            path.append(node)
        return None

    def touch(self, path: list[Node], length: int) -> None:
        """The first `length` tokens along `path` were used just now."""
        for node in reversed(path):
            self._nodes.move_to_end(node)
        for g, nodes in self._windowed.items():
            for node in path[first_seen(length, self._groups[g].window) // self._page_size :]:
                if node in nodes:
                    nodes.move_to_end(node)

    def evict(self, g: int) -> None:
        """Frees an idle page of group g, of what was not used for the longest time."""
        n_users = self._pools[g].n_users
        nodes = self._windowed.get(g, self._nodes)
        for _ in range(len(nodes)):
            node = next(iter(nodes))
            if n_users[node.pages[g]]:
                nodes.move_to_end(node)
                continue
            self.n_evicted += 1
            if nodes is self._nodes:
                self._remove(node)
            else:
                self._drop_page(node, g)
            return
        raise AssertionError(f"no idle page in group {self._groups[g].name!r}")

    def clear(self) -> None:
        """Lets go of everything."""
        for node in self._nodes:
            self._empty(node)
            self._forget(node)
        self._nodes.clear()
        self._roots.clear()

    def _continued(self, root: Node, tokens: list[int], path: list[Node], length: int) -> tuple[list[Node], int]:
        """At most `length` from where every group can continue: its nodes, its length."""
        while (cut := self._cut(path, length)) and self._checkpoints is not None:
            path, length = self._last_state(root, tokens, path, cut)
            if length == cut == self._cut(path, length):
                break
        return path, cut

    def _last_state(self, root: Node, tokens: list[int], path: list[Node], length: int) -> tuple[list[Node], int]:
        """At most `length` such that a state is kept there, perhaps by a node beside the path that begins alike."""
        size = self._page_size
        for depth in range((length - 1) // size, -1, -1):
            parent, begin = path[depth - 1] if depth else root, depth * size
            here = tuple(tokens[begin : min(begin + size, length)])
            found = [
                (n, child)
                for child in parent.children.values()
                if child.states
                for n in child.states
                if child.tokens[:n] == here[:n] and n <= len(here)
            ]
            if found:
                n, child = max(found, key=itemgetter(0))
                return [*path[:depth], child], begin + n
        return [], 0

    def _cut(self, path: list[Node], length: int) -> int:
        """At most `length` such that each window before it has all its pages."""
        size = self._page_size
        complete = False
        while not complete:
            complete = True
            for g in self._windowed:
                first = first_seen(length, self._groups[g].window) // size
                for i in range(-(-length // size) - 1, first - 1, -1):
                    if path[i].pages[g] < 0:
                        length = i * size
                        complete = False
                        break
        return length

    def _child(self, node: Node, tokens: Key) -> Node:
        """The child that begins with `tokens`: the one there is, or one that ended earlier and now goes on, or a new
        one."""
        child = node.children.get(tokens)
        if child is not None:
            return child
        closest, n_common = _closest(node, tokens)
        if closest is not None and n_common == len(tokens):
            return closest
        if closest is not None and n_common == len(closest.tokens):
            self._empty(closest)
            del node.children[closest.tokens]
            closest.tokens = tokens
        else:
            closest = Node(node, tokens, [-1] * len(self._groups))
        node.children[tokens] = closest
        self._nodes[closest] = None
        return closest

    def _share(self, node: Node, i: int, tables: Tables) -> None:
        """Node and tables have the same page i, in each group that has one."""
        is_full = len(node.tokens) == self._page_size
        for g, table in enumerate(tables):
            mine, page = table[i], node.pages[g]
            if mine < 0 or mine == page:
                continue
            pool = self._pools[g]
            if page < 0:
                pool.cache(mine)
                node.pages[g] = mine
                if g in self._windowed:
                    self._windowed[g][node] = None
            elif is_full:  # else `mine` is still being written
                pool.hold(page)
                pool.drop(mine)
                table[i] = page

    def _remove(self, node: Node) -> None:
        assert not node.children, "a node was used after its parent"
        self._empty(node)
        self._forget(node)
        del self._nodes[node]
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        if parent.parent is None and not parent.children:
            self._roots = {tenant: root for tenant, root in self._roots.items() if root.children}

    def _forget(self, node: Node) -> None:
        if self._checkpoints is not None:
            self._checkpoints.forget(node)

    def _empty(self, node: Node) -> None:
        for g, page in enumerate(node.pages):
            if page >= 0:
                self._drop_page(node, g)

    def _drop_page(self, node: Node, g: int) -> None:
        self._pools[g].uncache(node.pages[g])
        node.pages[g] = -1
        if g in self._windowed:
            del self._windowed[g][node]


def first_seen(position: int, window: int) -> int:
    """The first cell that a row at `position` sees, and hence the first that any later row sees."""
    return max(0, position - window + 1) if window else 0


def _closest(node: Node, tokens: Key) -> tuple[Node | None, int]:
    """The child with the longest common prefix with `tokens`, and that prefix's length; None: they differ at once."""
    best, n_best = None, 0
    for child in node.children.values():
        n = 0
        for a, b in zip(child.tokens, tokens, strict=False):
            if a != b:
                break
            n += 1
        if n > n_best:
            best, n_best = child, n
    return best, n_best
