"""Selectors, which pick one key of a table, as in Reverb; for the embedded backend."""

from __future__ import annotations

import random
from typing import Protocol


class KeySelection(Protocol):
    """A set of keys with priorities, from which it can pick one."""

    def insert(self, key: int, priority: float) -> None: ...

    def update(self, key: int, priority: float) -> None: ...

    def delete(self, key: int) -> None: ...

    def pick(self) -> tuple[int, float]:
        """Returns a key and the probability with which it was picked; there must be a key."""
        ...


class Ordered:
    """Picks the oldest key, or the newest."""

    def __init__(self, newest: bool) -> None:
        self._keys: dict[int, None] = {}
        self._newest = newest

    def insert(self, key: int, priority: float) -> None:
        self._keys[key] = None

    def update(self, key: int, priority: float) -> None:
        pass

    def delete(self, key: int) -> None:
        del self._keys[key]

    def pick(self) -> tuple[int, float]:
        return next(reversed(self._keys) if self._newest else iter(self._keys)), 1.0


class Heap:
    """Picks the key with the highest priority, or the lowest; among equals the oldest."""

    def __init__(self, lowest: bool) -> None:
        self._priorities: dict[int, float] = {}
        self._best = min if lowest else max

    def insert(self, key: int, priority: float) -> None:
        self._priorities[key] = priority

    def update(self, key: int, priority: float) -> None:
        self._priorities[key] = priority

    def delete(self, key: int) -> None:
        del self._priorities[key]

    def pick(self) -> tuple[int, float]:
        return self._best(self._priorities, key=self._priorities.__getitem__), 1.0


class Uniform:
    """Picks any key with the same probability."""

    def __init__(self, rng: random.Random) -> None:
        self._keys: list[int] = []
        self._indices: dict[int, int] = {}
        self._rng = rng

    def insert(self, key: int, priority: float) -> None:
        self._indices[key] = len(self._keys)
        self._keys.append(key)

    def update(self, key: int, priority: float) -> None:
        pass

    def delete(self, key: int) -> None:
        index, last = self._indices.pop(key), self._keys.pop()
        if last != key:
            self._keys[index] = last
            self._indices[last] = index

    def pick(self) -> tuple[int, float]:
        return self._rng.choice(self._keys), 1.0 / len(self._keys)


class Prioritized:
    """Picks a key in proportion to priority ** exponent; any key if all priorities are 0.

    The weights are the leaves of a sum tree: leaf i is node `capacity + i`, and node n is the sum
    of nodes 2n and 2n + 1.
    """

    def __init__(self, exponent: float, rng: random.Random) -> None:
        self._exponent = exponent
        self._rng = rng
        self._keys: list[int] = []
        self._indices: dict[int, int] = {}
        self._capacity = 1
        self._sums = [0.0, 0.0]

    def insert(self, key: int, priority: float) -> None:
        index = len(self._keys)
        if index == self._capacity:
            self._grow()
        self._keys.append(key)
        self._indices[key] = index
        self._set(index, self._weight(priority))

    def update(self, key: int, priority: float) -> None:
        self._set(self._indices[key], self._weight(priority))

    def delete(self, key: int) -> None:
        index, last = self._indices.pop(key), self._keys.pop()
        last_index = len(self._keys)
        if last != key:
            self._keys[index] = last
            self._indices[last] = index
            self._set(index, self._sums[self._capacity + last_index])
        self._set(last_index, 0.0)

    def pick(self) -> tuple[int, float]:
        total = self._sums[1]
        if total <= 0.0:
            return self._rng.choice(self._keys), 1.0 / len(self._keys)
        rest, node = self._rng.random() * total, 1
        while node < self._capacity:
            node *= 2
            # A right subtree of sum 0 is never entered, whatever `rest` is after rounding.
            if rest >= self._sums[node] and self._sums[node + 1] > 0.0:
                rest -= self._sums[node]
                node += 1
        return self._keys[node - self._capacity], self._sums[node] / total

    def _weight(self, priority: float) -> float:
        return priority**self._exponent if priority > 0.0 else 0.0

    def _set(self, index: int, weight: float) -> None:
        node = self._capacity + index
        self._sums[node] = weight
        while node > 1:
            node //= 2
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]

    def _grow(self) -> None:
        leaves = self._sums[self._capacity :]
        self._capacity *= 2
        self._sums = [0.0] * self._capacity + leaves + [0.0] * len(leaves)
        for node in range(self._capacity - 1, 0, -1):
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]


def make(kind: str, exponent: float, rng: random.Random) -> KeySelection:
    """Makes the selection of a `TableSpec`'s sampler."""
    match kind:
        case "fifo":
            return Ordered(newest=False)
        case "lifo":
            return Ordered(newest=True)
        case "uniform":
            return Uniform(rng)
        case "prioritized":
            return Prioritized(exponent, rng)
        case "max_heap":
            return Heap(lowest=False)
        case "min_heap":
            return Heap(lowest=True)
    raise ValueError(f"There is no selector {kind!r}.")
