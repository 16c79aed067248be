"""A disk whose writes are lost or torn unless they were flushed."""

from __future__ import annotations

import dataclasses
import random
from typing import Any


class DiskFullError(OSError):
    """A write finds no room."""


class _Torn:
    """The rest of a record that was being written when the power went."""

    def __repr__(self) -> str:
        return "a torn record"


TORN = _Torn()


@dataclasses.dataclass
class _File:
    owner: str
    records: list[Any]
    flushed: int = 0


class SimulatedDisk:
    """Files of records, which processes append to, flush and rename.

    A rename takes effect at once. The content of the renamed file is as safe as it was before.

    Attributes:
      is_full: whether writes fail.
      faults: number of crashes that have cost a file something.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self.is_full = False
        self.faults = 0

    def append(self, owner: str, name: str, record: Any) -> None:
        """Appends a record to a file, which is created if it is not there.

        Raises:
          DiskFullError: there is no room.
        """
        if self.is_full:
            raise DiskFullError(f"{owner} cannot write {name}: the disk is full")
        self._files.setdefault(name, _File(owner, [])).records.append(record)

    def write(self, owner: str, name: str, records: list[Any]) -> None:
        """Replaces a file by records that are not flushed yet.

        Raises:
          DiskFullError: there is no room.
        """
        if self.is_full:
            raise DiskFullError(f"{owner} cannot write {name}: the disk is full")
        self._files[name] = _File(owner, [*records])

    def flush(self, name: str) -> None:
        """Makes the content of a file durable."""
        self._files[name].flushed = len(self._files[name].records)

    def rename(self, name: str, to: str) -> None:
        """Renames a file, which replaces another."""
        self._files[to] = self._files.pop(name)

    def delete(self, name: str) -> None:
        """Deletes a file if it is there."""
        self._files.pop(name, None)

    def names(self, prefix: str) -> list[str]:
        """Returns the names of files that begin with a prefix, in order."""
        return sorted(name for name in self._files if name.startswith(prefix))

    def read(self, name: str) -> list[Any]:
        """Returns the records before the first torn one; none if there is no such file."""
        found = self._files.get(name)
        if found is None:
            return []
        if TORN not in found.records:
            return [*found.records]
        return found.records[: found.records.index(TORN)]

    def cut_power(self, owner: str, chance: random.Random) -> None:
        """Loses some of a process's writes that were not flushed, and may tear the last one."""
        for file in self._files.values():
            if file.owner != owner or file.flushed == len(file.records):
                continue
            kept = chance.randint(file.flushed, len(file.records) - 1)
            self.faults += 1
            del file.records[kept:]
            if chance.random() < 0.5:
                file.records.append(TORN)
            file.flushed = min(file.flushed, kept)
