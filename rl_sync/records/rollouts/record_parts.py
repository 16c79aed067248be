"""Records in parts: files of JSON lines in one folder, of which the oldest go beyond a bound.

A part that goes is noted in a small file of its own, which stays. The note is written first, so
that whoever misses a part finds the reason, also after the death of the writer between the two.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rl_sync.clock import now_secs
from rl_sync.records.json_lines import JsonLinesWriter, JsonObject, read_json_lines
from rl_sync.records.resumption import RESUMED_AT, mark

PART_BYTES = 8 << 20
"""Size in bytes at which a part is closed and another begins."""

_PARTS_OF_BOUND = 8
"""Least number of parts that a bound is divided into, so that an eighth goes at once."""

_NAME = re.compile(r"[a-z]+-(\d+)\.jsonl")
_log = logging.getLogger(__name__)


class RecordPart(NamedTuple):
    """A file of records, and its number: that of its first step, or a count."""

    number: int
    path: Path


class RemovedPart(NamedTuple):
    """A part that is gone.

    Attributes:
      name: name of the file.
      first, last: its number, and the number before that of the next part.
      size_bytes: its size.
    """

    name: str
    first: int
    last: int
    size_bytes: int


def part_name(name: str, number: int) -> str:
    """Returns the name of a part's file, such as `step-00000001.jsonl`."""
    return f"{name}-{number:08d}.jsonl"


def parts_in(folder: Path) -> list[RecordPart]:
    """Lists the parts in a folder in the order of their numbers; empty without records."""
    if not folder.is_dir():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(RecordPart(int(match[1]), path) for match, path in found if match)


def removed_parts(notes: Path) -> list[RemovedPart]:
    """Reads which parts are gone, in the order in which they went; empty if there are no notes.

    A run that went on from an earlier step writes the later steps again, so these are not gone.
    """
    try:
        lines = read_json_lines(notes, strict=False)
    except OSError:
        return []
    found = dict[str, RemovedPart]()
    for line in lines:
        if (step := line.get(RESUMED_AT)) is not None:
            found = {
                name: one._replace(last=min(one.last, step))
                for name, one in found.items()
                if one.first <= step
            }
        elif {"part", "first", "last", "bytes"} <= line.keys():
            one = RemovedPart(line["part"], line["first"], line["last"], line["bytes"])
            found[one.name] = one
    return [*found.values()]


class RecordParts:
    """Appends encoded records to the parts of a folder, and never raises an error of the disk.

    Records that cannot be written are dropped. The log says so once, until writing works again.

    Args:
      folder: the folder.
      notes: file that notes which parts have gone.
      name: beginning of the parts' names, of small letters.
      most_bytes: size of all parts together beyond which the oldest go, in bytes; 0 for no bound.
      part_bytes: size of parts, in bytes.

    Attributes:
      size_bytes: size of all parts together.
    """

    def __init__(
        self,
        folder: Path,
        notes: Path,
        name: str,
        most_bytes: int = 0,
        part_bytes: int = PART_BYTES,
    ):
        self._folder, self._notes, self._name = folder, notes, name
        self._most_bytes = most_bytes
        each_bytes = max(1, most_bytes // _PARTS_OF_BOUND) if most_bytes else part_bytes
        self._part_bytes = min(part_bytes, each_bytes)
        self._part: JsonLinesWriter | None = None
        self._sizes: dict[RecordPart, int] = {}
        self._failed = False
        self.size_bytes = 0

    def begin(self, resumed_at: int | None = None) -> None:
        """Takes the parts of earlier writers, and ends a removal in which one of them died.

        Args:
          resumed_at: trainer step that the run goes on from, if the parts' numbers are steps.
        """
        try:
            if resumed_at is not None and self._notes.exists():
                self._note(mark(resumed_at))
            removed = {one.name for one in removed_parts(self._notes)}
            for part in parts_in(self._folder):
                if part.path.name in removed:
                    part.path.unlink(missing_ok=True)
                else:
                    self._sizes[part] = part.path.stat().st_size
            if self._sizes:  # Only there a writer that was killed has left half a line.
                self._opened(self._last).close()
            self.size_bytes = sum(self._sizes.values())
        except OSError as error:
            self.give_up(error.strerror or str(error))

    def write(self, lines: Sequence[bytes], number: int | None = None) -> None:
        """Appends records, each an object in JSON, after older ones have made room for them.

        Records of one call that are larger than the bound are dropped.

        Args:
          number: number of the part, if these records begin one, and stay together; None for the
            last one's plus 1, and for records that may be in several parts.
        """
        count = sum(map(len, lines)) + len(lines)
        if not count:
            return
        if number is None and len(lines) > 1 and count > self._part_bytes:
            half = len(lines) // 2
            self.write(lines[:half])
            self.write(lines[half:])
            return
        if self._most_bytes and count > self._most_bytes:
            self.give_up(f"{count:,} bytes at once are more than all of them may take")
            return
        try:
            if self._part is None or self._sizes[self._last] >= self._part_bytes:
                self._open(number)
            if not self._make_room(count, number):
                return
        except OSError as error:
            self.give_up(error.strerror or str(error))
            return
        assert self._part is not None
        self._failed = False
        written = self._part.write_encoded(lines)
        self._sizes[self._last] += written
        self.size_bytes += written

    def close(self) -> None:
        """Closes the part; closing twice is fine."""
        if self._part is not None:
            self._part.close()

    def give_up(self, why: str) -> None:
        """Says in the log, once until writing works again, that records are left out."""
        if not self._failed:
            _log.warning(
                "Records cannot be written in %s: %s. The run goes on without these records.",
                self._folder,
                why,
            )
        self._failed = True

    @property
    def _last(self) -> RecordPart:
        return next(reversed(self._sizes))

    def _open(self, number: int | None) -> None:
        """Opens a part; the last one of an earlier writer goes on if it has room."""
        has_room = self._sizes and self._sizes[self._last] < self._part_bytes
        if number is None and self._part is None and has_room:
            self._part = self._opened(self._last)
            return
        self.close()
        self._part = None
        if number is None:
            known = [part.number for part in self._sizes]
            number = 1 + max([0, *known, *(one.first for one in removed_parts(self._notes))])
        self._part = self._opened(RecordPart(number, self._folder / part_name(self._name, number)))

    def _opened(self, part: RecordPart) -> JsonLinesWriter:
        writer = JsonLinesWriter(part.path, vital=False)  # It cuts an unfinished line.
        size = part.path.stat().st_size
        self.size_bytes += size - self._sizes.get(part, 0)
        self._sizes[part] = size
        return writer

    def _make_room(self, count: int, number: int | None) -> bool:
        """Removes the oldest parts until `count` bytes fit; says whether they do."""
        while self._most_bytes and self.size_bytes + count > self._most_bytes:
            if len(self._sizes) == 1:  # The open part is all that is left.
                self.close()
                self._part = None
            oldest, *later = self._sizes
            last = later[0].number - 1 if later else oldest.number
            if number is not None and not later:
                last = max(oldest.number, number - 1)
            if not self._remove(oldest, last):
                return False
        if self._part is None:
            self._open(number)
        return True

    def _remove(self, part: RecordPart, last: int) -> bool:
        size = self._sizes[part]
        note = {"time": now_secs(), "part": part.path.name, "first": part.number}
        if not self._note({**note, "last": max(part.number, last), "bytes": size}):
            self.give_up(f"{self._notes} cannot note what goes")
            return False
        part.path.unlink(missing_ok=True)
        del self._sizes[part]
        self.size_bytes -= size
        return True

    def _note(self, line: JsonObject) -> bool:
        """Appends to the notes; says whether it could."""
        writer = JsonLinesWriter(self._notes, vital=False)
        before = os.path.getsize(self._notes)
        writer.write(line)
        writer.close()
        return os.path.getsize(self._notes) > before
