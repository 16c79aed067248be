"""A replay buffer inside the process, with Reverb's semantics but without a server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence

import msgpack

from rl_sync.replay import reverb_pb2, wire
from rl_sync.replay.replay_interface import Columns, ReplayError, ReplayTimeoutError, Sample
from rl_sync.replay.store import DrawnItem, EmbeddedTable, Stored
from rl_sync.replay.tables import TableInfo, TableSpec, check_names


class EmbeddedReplay:
    """Tables in this process's memory; see `rl_sync.replay.replay_interface.Replay`.

    Items are kept as the messages to a server. So samples are the same as those of a server, and
    later changes to an inserted array have no effect.

    Args:
      tables: the tables.
      checkpoint_dir: the folder where `checkpoint` writes; None if it is not used.
      restore: a checkpoint to start from, of a buffer with no other tables than these.

    Raises:
      ValueError: two tables have the same name, or the checkpoint is unreadable or has other
        tables.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        checkpoint_dir: str | os.PathLike[str] | None = None,
        restore: str | os.PathLike[str] | None = None,
    ) -> None:
        check_names(tables)
        self._tables = {spec.name: EmbeddedTable(spec) for spec in tables}
        self._checkpoint_dir = checkpoint_dir
        self._lock = threading.Lock()
        self._unsettled: dict[str, list[Stored]] = {spec.name: [] for spec in tables}
        if restore is not None:
            self._restore(restore)

    def __enter__(self) -> EmbeddedReplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def table(self, name: str) -> EmbeddedTable:
        """Returns a table; the payload of its items is a FlatTrajectory with its chunks.

        Raises:
          ReplayError: there is no table of this name.
        """
        if name not in self._tables:
            raise ReplayError(
                f"There is no replay table {name!r}; the tables are {', '.join(self._tables)}."
            )
        return self._tables[name]

    def insert(
        self, table: str, columns: Columns, *, priority: float = 1.0, timeout_secs: float
    ) -> None:
        self.insert_many(table, [columns], priorities=[priority], timeout_secs=timeout_secs)

    def insert_many(
        self,
        table: str,
        items: Sequence[Columns],
        *,
        priorities: Sequence[float] | None = None,
        timeout_secs: float,
    ) -> None:
        deadline = time.monotonic() + timeout_secs
        weights = [1.0] * len(items) if priorities is None else priorities
        submitted = []
        for columns, priority in zip(items, weights, strict=True):
            encoded = wire.encode_item(table, columns, priority)
            request = reverb_pb2.InsertStreamRequest.FromString(b"".join(encoded.pieces))
            payload = (request.items[0].flat_trajectory, list(request.chunks))
            submitted.append(Stored(encoded.key, priority, payload))
            self.table(table).submit(submitted[-1])
        self._settle(table, submitted, deadline, timeout_secs)

    def flush(self, timeout_secs: float) -> None:
        deadline = time.monotonic() + timeout_secs
        with self._lock:
            unsettled, self._unsettled = self._unsettled, {name: [] for name in self._tables}
        for table, items in unsettled.items():
            self._settle(table, items, deadline, timeout_secs)

    def sample(self, table: str, count: int = 1, *, timeout_secs: float) -> list[Sample]:
        deadline = time.monotonic() + timeout_secs
        drawn: list[DrawnItem] = []
        while len(drawn) < count:
            more = self.table(table).sample(count - len(drawn), deadline)
            drawn += more
            if not more:
                break
        if count and not drawn:
            raise ReplayTimeoutError(
                f"Waited {timeout_secs:.1f} s for an item to sample from replay table {table!r};"
                f" {self._state_of(table)}."
            )
        return [
            Sample(
                key=one.key,
                priority=one.priority,
                times_sampled=one.times_sampled,
                probability=one.probability,
                table_size=one.table_size,
                columns=wire.read_columns(*one.payload),
            )
            for one in drawn
        ]

    def update_priorities(self, table: str, priorities: Mapping[int, float]) -> None:
        self.table(table).update_priorities(dict(priorities))

    def delete(self, table: str, keys: Sequence[int]) -> None:
        self.table(table).delete(list(keys))

    def info(self) -> dict[str, TableInfo]:
        return {name: table.info() for name, table in self._tables.items()}

    def checkpoint(self) -> str:
        if self._checkpoint_dir is None:
            raise ReplayError("This replay buffer has no folder for checkpoints: name one.")
        os.makedirs(self._checkpoint_dir, exist_ok=True)
        path = os.path.join(self._checkpoint_dir, f"replay-{time.time_ns()}.msgpack")
        rows = {}
        for name, table in self._tables.items():
            items, counts = table.snapshot()
            rows[name] = {"counts": counts, "items": [_pack(item) for item in items]}
        with open(path + ".part", "wb") as file:
            msgpack.pack(rows, file)
        os.replace(path + ".part", path)
        return os.path.abspath(path)

    def reset(self, table: str) -> None:
        self.table(table).reset()

    def close(self) -> None:
        pass

    def _settle(
        self, table: str, items: list[Stored], deadline: float, timeout_secs: float
    ) -> None:
        left = self.table(table).wait_inserted(items, deadline)
        if left:
            with self._lock:
                self._unsettled[table] += [item for item in items if not item.inserted]
            raise ReplayTimeoutError(
                f"Waited {timeout_secs:.1f} s for room for {left} item(s) in replay table"
                f" {table!r}; {self._state_of(table)}. They go in as soon as there is room: wait"
                " for them with flush(), do not insert them again."
            )

    def _state_of(self, table: str) -> str:
        info = self.table(table).info()
        return f"it holds {info.current_size} of at most {info.max_size} items"

    def _restore(self, path: str | os.PathLike[str]) -> None:
        try:
            with open(path, "rb") as file:
                rows = msgpack.unpack(file)
            for name, row in rows.items():
                items = [_unpack(item) for item in row["items"]]
                self.table(name).restore(items, tuple(row["counts"]))
        except ReplayError as error:
            raise ValueError(f"Checkpoint {os.fspath(path)} does not fit: {error}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{os.fspath(path)} is no checkpoint of an embedded replay buffer: {error}"
            ) from error


def _pack(item: Stored) -> tuple[int, float, int, bytes, list[bytes]]:
    trajectory, chunks = item.payload
    return (
        item.key,
        item.priority,
        item.times_sampled,
        trajectory.SerializeToString(),
        [chunk.SerializeToString() for chunk in chunks],
    )


def _unpack(row: tuple[int, float, int, bytes, list[bytes]]) -> Stored:
    key, priority, times_sampled, trajectory, chunks = row
    payload = (
        reverb_pb2.FlatTrajectory.FromString(trajectory),
        [reverb_pb2.Chunk.FromString(chunk) for chunk in chunks],
    )
    return Stored(key, priority, payload, times_sampled, inserted=True)
