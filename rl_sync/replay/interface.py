"""What a replay buffer is to its users: samples, errors, and the protocol of both backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from rl_sync.replay.tables import TableInfo

Columns = Mapping[str, np.ndarray]
"""An item's named arrays, of any shapes; see `rl_sync.replay.tensors` for the dtypes."""

RPC_TIMEOUT_SECS = 30.0
CHECKPOINT_TIMEOUT_SECS = 600.0


class ReplayError(RuntimeError):
    """The replay buffer refused a request; the message says which and why."""


class ReplayTimeoutError(ReplayError, TimeoutError):
    """The replay buffer did not get to it in the time given."""


class ReplayUnavailableError(ReplayError):
    """The replay server cannot be reached, or went away."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One item drawn from a table.

    Attributes:
      key: identifies the item, for `update_priorities` and `delete`.
      priority: at the time of sampling.
      times_sampled: how often it was drawn, this time included.
      probability: of drawing it, at the time of sampling.
      table_size: items in the table at the time of sampling.
      columns: what was inserted; the arrays are the caller's own. Strings come back as object
        arrays of bytes.
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
          ReplayTimeoutError: the table had no room for that long. The item is not lost: it waits
            at the buffer, and goes in as soon as there is room. So do not insert it again; wait
            for it with `flush`.
          ValueError: a dtype that cannot be stored.
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

        When one of them cannot be stored, those in front of it may have been.
        """
        ...

    def flush(self, timeout_secs: float) -> None:
        """Waits until every item that this object was given is in its table.

        Raises:
          ReplayTimeoutError: some still wait for room.
        """
        ...

    def sample(self, table: str, count: int = 1, *, timeout_secs: float) -> list[Sample]:
        """Draws `count` items, or those that could be drawn in the time given, at least one.

        Raises:
          ReplayTimeoutError: not one item could be drawn in time.
        """
        ...

    def update_priorities(self, table: str, priorities: Mapping[int, float]) -> None:
        """Sets priorities by key; keys that the table does not hold are ignored."""
        ...

    def delete(self, table: str, keys: Sequence[int]) -> None:
        """Deletes items; keys that the table does not hold are ignored.

        A rate limiter counts inserts and samples only: where it makes writers wait, as in a queue,
        deleting an item gives no room.
        """
        ...

    def info(self) -> dict[str, TableInfo]:
        """Returns the state of every table, by name."""
        ...

    def checkpoint(self) -> str:
        """Saves all tables, and returns the path to start a server from."""
        ...

    def reset(self, table: str) -> None:
        """Empties a table and sets its rate limiter back."""
        ...

    def close(self) -> None:
        """Ends streams and threads. Items that still wait for room are left to the buffer."""
        ...
