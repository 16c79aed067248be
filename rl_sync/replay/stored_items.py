"""The embedded replay server's checkpoint: one file with all items of all tables.

The file has messages with their lengths before them: for each item the message with which a client
would insert it again, and a last one, without items, which shows that the file is whole.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from rl_sync.replay import reverb_pb2 as pb
from rl_sync.replay.store import EmbeddedTable, Stored

NAME = "checkpoint.bin"
_LENGTH = struct.Struct("<Q")


def save(path: Path, tables: Mapping[str, EmbeddedTable]) -> None:
    """Writes the items of tables to a temporary file, and renames it once it is on disk.

    Items that wait for room are left out: their clients have no confirmation yet.

    Raises:
      OSError: it cannot be written; an earlier checkpoint stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        for name, table in tables.items():
            for stored in table.items():
                trajectory, chunks = stored.payload
                message = pb.InsertStreamRequest(chunks=chunks)
                item = message.items.add(
                    key=stored.key,
                    table=name,
                    priority=stored.priority,
                    times_sampled=stored.times_sampled,
                )
                item.flat_trajectory.CopyFrom(trajectory)
                encoded = message.SerializeToString()
                file.write(_LENGTH.pack(len(encoded)) + encoded)
        file.write(_LENGTH.pack(0))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(path: Path, tables: Mapping[str, EmbeddedTable]) -> None:
    """Puts the items of a checkpoint into tables; those of other tables are left out.

    Raises:
      ValueError: the file is damaged.
    """
    for message in _messages(path):
        for item in message.items:
            if (table := tables.get(item.table)) is not None:
                payload = (item.flat_trajectory, list(message.chunks))
                table.restore(Stored(item.key, item.priority, payload, item.times_sampled))


def _messages(path: Path) -> Iterator[pb.InsertStreamRequest]:
    data = memoryview(path.read_bytes())
    while len(data) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data)
        data = data[_LENGTH.size :]
        if not length:
            return
        if length > len(data):
            break
        yield pb.InsertStreamRequest.FromString(bytes(data[:length]))
        data = data[length:]
    raise ValueError(f"{path} is not whole, so the replay server cannot begin with it: delete it.")
