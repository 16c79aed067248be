"""The interface of a replay buffer: samples, errors, and the protocol of both backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from rl_sync.replay.tables import TableInfo

Backend = Literal["reverb", "embedded"]

Columns = Mapping[str, np.ndarray]
"""Named arrays of an item, of any shapes; see `rl_sync.replay.tensors` for the dtypes."""

RPC_TIMEOUT_SECS = 30.0
CHECKPOINT_TIMEOUT_SECS = 600.0


class ReplayError(RuntimeError):
    """The replay buffer refused a request; the message names it and the reason."""


class ReplayTimeoutError(ReplayError, TimeoutError):
    """The replay buffer could not answer a request in the given time."""


class ReplayUnavailableError(ReplayError):
    """The replay server cannot be reached, or has ended."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One item drawn from a table.

    Attributes:
      key: the id of the item, for `update_priorities` and `delete`.
      priority: the priority at the time of sampling.
      times_sampled: the number of times it was drawn, this time included.
      probability: the probability of drawing it, at the time of sampling.
      table_size: the number of items in the table at the time of sampling.
      columns: the inserted arrays, as copies for the caller. Strings are returned as object arrays
        of bytes.
    """

    key: int
    priority: float
    times_sampled: int
    probability: float
    table_size: int
    columns: dict[str, np.ndarray]


class Replay(Protocol):
    """A replay buffer: `ReplayClient` (a server, by gRPC) or `EmbeddedReplay` (in this process).

    All methods may be called from several threads at once, except `close`.
    """

    def insert(
        self, table: str, columns: Columns, *, priority: float = 1.0, timeout_secs: float
    ) -> None:
        """Inserts one item, and returns when the table holds it.

        Raises:
          ReplayTimeoutError: the table had no room in that time. The item is not lost: it waits at
            the buffer, and is inserted as soon as there is room. So do not insert it again; wait
            for it with `flush`.
          ValueError: a dtype cannot be stored.
        """
        ...

    def insert_many(
        self,
        table: str,
        items: Sequence[Columns],
        *,
        priorities: Sequence[float] | None = None,
        timeout_secs: float,
    ) -> None:
        """Inserts items in their order, pipelined; otherwise like `insert`.

        If one of them cannot be stored, those before it may already be stored.
        """
        ...

    def flush(self, timeout_secs: float) -> None:
        """Waits until all items inserted through this object are in their tables.

        Raises:
          ReplayTimeoutError: some still wait for room.
        """
        ...

    def sample(self, table: str, count: int = 1, *, timeout_secs: float) -> list[Sample]:
        """Draws `count` items, or as many as possible in the given time, but at least one.

        Raises:
          ReplayTimeoutError: no item could be drawn in time.
        """
        ...

    def update_priorities(self, table: str, priorities: Mapping[int, float]) -> None:
        """Sets priorities by key; keys that the table does not hold are ignored."""
        ...

    def delete(self, table: str, keys: Sequence[int]) -> None:
        """Deletes items; keys that the table does not hold are ignored.

        A rate limiter counts only inserts and samples. So if it makes writers wait, as in a queue,
        deleting an item makes no room.
        """
        ...

    def info(self) -> dict[str, TableInfo]:
        """Returns the state of every table, by name."""
        ...

    def checkpoint(self) -> str:
        """Saves all tables, and returns the path from which a server can start."""
        ...

    def reset(self, table: str) -> None:
        """Empties a table and resets its rate limiter."""
        ...

    def close(self) -> None:
        """Ends streams and threads. Items that still wait for room stay at the buffer."""
        ...
