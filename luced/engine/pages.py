"""Pages of one cache group: which are free, which sequences use, which the prefix tree keeps."""

from __future__ import annotations


class Pool:
    """A page is free, in use (by n_users sequences), cached (kept by the prefix tree), or in use and cached.

    A cached page without users is idle: it can be had by evicting it.
    """

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self.n_users = [0] * n_pages
        self.n_idle = 0
        self._cached = bytearray(n_pages)
        self._free = list(range(n_pages - 1, -1, -1))

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_available(self) -> int:
        """Pages that can be had, by eviction if need be."""
        return len(self._free) + self.n_idle

    def take(self) -> int:
        """A free page, for one user."""
        page = self._free.pop()
        self.n_users[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One user more, of a page that is in use or cached."""
        assert self.n_users[page] or self._cached[page], f"page {page} is free"
        if not self.n_users[page]:
            self.n_idle -= 1
        self.n_users[page] += 1

    def drop(self, page: int) -> None:
        """One user less."""
        assert self.n_users[page] > 0, f"page {page} has no user"
        self.n_users[page] -= 1
        if not self.n_users[page]:
            if self._cached[page]:
                self.n_idle += 1
            else:
                self._free.append(page)

    def cache(self, page: int) -> None:
        """The prefix tree keeps it; it is in use."""
        assert self.n_users[page], f"page {page} is not in use"
        assert not self._cached[page], f"page {page} is cached already"
        self._cached[page] = 1

    def uncache(self, page: int) -> None:
        """The prefix tree lets go of it."""
        assert self._cached[page], f"page {page} is not cached"
        self._cached[page] = 0
        if not self.n_users[page]:
            self.n_idle -= 1
            self._free.append(page)
