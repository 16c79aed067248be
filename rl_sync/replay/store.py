"""One table of the embedded backend: Reverb's rules for inserting, sampling and waiting."""

from __future__ import annotations

import collections
import dataclasses
import random
import threading
import time
from typing import Any

from rl_sync.replay import selection
from rl_sync.replay.tables import TableInfo, TableSpec


@dataclasses.dataclass
class Stored:
    """An item of a table.

    Attributes:
      key, priority, times_sampled: as in `rl_sync.replay.replay_interface.Sample`.
      payload: inserted data, which the table does not read.
      inserted: whether it is in the table; otherwise it waits for room.
    """

    key: int
    priority: float
    payload: Any
    times_sampled: int = 0
    inserted: bool = False


@dataclasses.dataclass(frozen=True)
class DrawnItem:
    """A sampled item with the table's state at that moment; see `Sample`."""

    key: int
    priority: float
    times_sampled: int
    probability: float
    table_size: int
    payload: Any


class EmbeddedTable:
    """A table: items, their selection, and a rate limiter. A full table drops its oldest item.

    Inserts wait in a queue, in order. They enter the table as soon as the limiter allows it, even
    if no caller waits for that any more.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._changed = threading.Condition()
        self._rng = random.Random()
        self._clear()

    def _clear(self) -> None:
        spec = self.spec
        self._items: dict[int, Stored] = {}
        self._waiting: collections.deque[Stored] = collections.deque()
        self._sampler = selection.make(spec.sampler, spec.priority_exponent, self._rng)
        self._inserts = self._samples = self._deletes = 0

    def submit(self, item: Stored) -> None:
        """Adds an item to the queue of inserts."""
        with self._changed:
            self._waiting.append(item)
            self._advance()

    def wait_inserted(self, items: list[Stored], deadline: float) -> int:
        """Waits until submitted items are in the table.

        Returns:
          The number of items that still wait for room at the deadline (on `time.monotonic()`'s
          clock).
        """
        with self._changed:
            self._changed.wait_for(
                lambda: all(item.inserted for item in items),
                timeout=max(0.0, deadline - time.monotonic()),
            )
            return sum(not item.inserted for item in items)

    def sample(self, count: int, deadline: float) -> list[DrawnItem]:
        """Samples up to `count` items; waits until the deadline, but only for the first one."""
        drawn: list[DrawnItem] = []
        with self._changed:
            timeout_secs = max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(self._can_sample, timeout=timeout_secs):
                return []
            while len(drawn) < count and self._can_sample():
                drawn.append(self._draw())
                self._advance()
        return drawn

    def items(self) -> list[Stored]:
        """Returns copies of the items in the table, the oldest first."""
        with self._changed:
            return [dataclasses.replace(item) for item in self._items.values()]

    def restore(self, item: Stored) -> None:
        """Adds an item of a checkpoint, which has been inserted and sampled before."""
        with self._changed:
            self._inserts += 1
            self._samples += item.times_sampled
            item.inserted = True
            self._add(item)

    def reset(self) -> None:
        """Empties the table; waiting inserts then enter."""
        with self._changed:
            waiting = self._waiting
            self._clear()
            self._waiting = waiting
            self._advance()

    def info(self) -> TableInfo:
        """Returns the table's state."""
        spec = self.spec
        with self._changed:
            return TableInfo(
                name=spec.name,
                max_size=spec.max_size,
                sampler=spec.sampler,
                max_times_sampled=spec.max_times_sampled,
                min_size_to_sample=spec.min_size_to_sample,
                current_size=len(self._items),
                num_inserted=self._inserts,
                num_sampled=self._samples,
            )

    def _advance(self) -> None:
        """Inserts waiting items, as far as the limiter allows, and wakes up all waits."""
        while self._waiting and self._can_insert():
            item = self._waiting.popleft()
            if item.key in self._items:
                self._update(item.key, item.priority)
            else:
                if len(self._items) >= self.spec.max_size:
                    self._remove(next(iter(self._items)))
                self._add(item)
                self._inserts += 1
            item.inserted = True
        self._changed.notify_all()

    def _can_insert(self) -> bool:
        if self._inserts + 1 - self._deletes <= self.spec.min_size_to_sample:
            return True
        return (self._inserts + 1) * self.spec.samples_per_insert - self._samples <= (
            self.spec.max_diff
        )

    def _can_sample(self) -> bool:
        if len(self._items) < self.spec.min_size_to_sample:
            return False
        return self._inserts * self.spec.samples_per_insert - (self._samples + 1) >= (
            self.spec.min_diff
        )

    def _draw(self) -> DrawnItem:
        key, probability = self._sampler.pick()
        item = self._items[key]
        item.times_sampled += 1
        self._samples += 1
        drawn = DrawnItem(
            key, item.priority, item.times_sampled, probability, len(self._items), item.payload
        )
        if item.times_sampled == self.spec.max_times_sampled:
            self._remove(key)
        return drawn

    def _add(self, item: Stored) -> None:
        self._items[item.key] = item
        self._sampler.insert(item.key, item.priority)

    def _update(self, key: int, priority: float) -> None:
        self._items[key].priority = priority
        self._sampler.update(key, priority)

    def _remove(self, key: int) -> None:
        del self._items[key]
        self._sampler.delete(key)
        self._deletes += 1
