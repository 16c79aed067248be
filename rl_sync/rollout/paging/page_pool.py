"""Allocates the physical pages of a KV cache, and finds the pages of known prefixes again.

A page is free, used by one or more sequences, or cached: no sequence uses it, but it holds a part
of a prefix that a later sequence may begin with. Cached pages are given away when no page is free,
least recently used first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

from rl_sync.sequence_images import SequenceImages


def prefix_keys(
    content: tuple[int | str, ...],
    tokens: Int[np.ndarray, " P"],
    page_tokens: int,
    images: SequenceImages | None = None,
) -> tuple[bytes, ...]:
    """Returns a key for each page of a prefix: equal keys mean equal keys and values.

    The page with the last token gets no key: the first decode step writes that token's keys and
    values, so each sequence needs a page of its own there.

    Args:
      content: everything besides the tokens that keys and values depend on, such as the version of
        the weights.
      page_tokens: number of tokens of a page.
      images: images of the prefix.
    """
    # The page number is no part of the key: a key also stands for all tokens before its page.
    found, digest = [], hashlib.blake2b(repr(content).encode(), digest_size=16)
    ids = np.ascontiguousarray(tokens, np.int32)
    for start in range(0, (len(ids) - 1) // page_tokens * page_tokens, page_tokens):
        digest.update(ids[start : start + page_tokens].tobytes())
        if images is not None:
            # Its tokens may attend both ways, so the first page of a tile depends on all of it.
            shown = images.over(len(ids))[start : start + page_tokens]
            digest.update(repr(images.within(start, start + page_tokens)).encode())
            digest.update(np.where(shown < 0, shown, shown % images.tile_tokens).tobytes())
        found.append(digest.digest())
    return tuple(found)


class PagePool:
    """The pages of a cache, by number.

    Args:
      count: number of pages.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))[::-1]
        self._users = [0] * count
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        # Ordered by last use. A dict keeps the order and finds each page at once.
        self._cached: dict[int, None] = {}

    @property
    def available(self) -> int:
        """Number of pages that no sequence uses."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Number of pages that sequences use."""
        return self.count - self.available

    @property
    def shared(self) -> int:
        """Number of pages that sharing saves: users beyond the first of each page."""
        return sum(self._users) - self.used

    def users(self, page: int) -> int:
        """Returns the number of sequences that use a page."""
        return self._users[page]

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Returns the pages of the longest known prefix, given the keys of its pages."""
        found = []
        for key in keys:
            if (page := self._page_of.get(key)) is None:
                break
            found.append(page)
        return found

    def remaining(self, found: Sequence[int]) -> int:
        """Returns how many pages are available once a sequence uses the found ones."""
        return self.available - sum(page in self._cached for page in found)

    def share(self, pages: Iterable[int]) -> None:
        """Adds a user to each of some pages, which other sequences use or which are cached."""
        for page in pages:
            self._cached.pop(page, None)
            self._users[page] += 1

    def take(self, count: int) -> list[int]:
        """Gives pages that nobody uses to a sequence; fewer than available must be asked for."""
        assert count <= self.available, "the caller makes sure that there are enough"
        taken = []
        for _ in range(count):
            if not self._free:
                self._forget(next(iter(self._cached)))
            page = self._free.pop()
            self._users[page] = 1
            taken.append(page)
        return taken

    def name(self, page: int, key: bytes) -> None:
        """Records the key of a page in use, unless another page has it."""
        if key not in self._page_of:
            self._page_of[key], self._key_of[page] = page, key

    def drop(self, pages: Sequence[int]) -> None:
        """Removes a user from each page of a sequence, given in the order of its tokens."""
        # The last pages come first: a prefix without its first page cannot be found.
        for page in reversed(pages):
            self._users[page] -= 1
            assert self._users[page] >= 0, "a page is dropped as often as it was taken or shared"
            if self._users[page]:
                continue
            if page in self._key_of:
                self._cached[page] = None
            else:
                self._free.append(page)

    def forget_prefixes(self) -> None:
        """Forgets all keys, so that no page is found any more."""
        for page in list(self._cached):
            self._forget(page)
        self._page_of.clear()
        self._key_of.clear()

    def _forget(self, cached: int) -> None:
        del self._cached[cached], self._page_of[self._key_of.pop(cached)]
        self._free.append(cached)
