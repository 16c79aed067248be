"""Writes the records of rollouts; their reader is `rl_sync.records.rollouts.rollout_records`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rl_sync.records.json_lines import JsonLinesReader
from rl_sync.records.rollouts.record_parts import PART_BYTES, RecordParts
from rl_sync.records.rollouts.rollout_records import parts
from rl_sync.workdir import Workdir


class RolloutParts:
    """Appends encoded records to `workdir/rollouts/`; see `RecordParts`.

    Args:
      workdir: work directory of the run.
      start: trainer step that the run resumes from; records of later steps are removed.
      part_bytes, most_bytes: see `RecordParts`.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        start: int = 0,
        part_bytes: int = PART_BYTES,
        most_bytes: int = 0,
    ):
        at = Workdir(workdir)
        notes = at.removed(at.rollouts)
        self._parts = RecordParts(at.rollouts, notes, "step", most_bytes, part_bytes)
        try:
            _drop_after(at, start)
        except OSError as error:
            self._parts.give_up(error.strerror or str(error))
        else:
            self._parts.begin(resumed_at=start)

    @property
    def size_bytes(self) -> int:
        """Size of the records, in bytes."""
        return self._parts.size_bytes

    def write(self, step: int, lines: Sequence[bytes]) -> None:
        """Appends the records of one step, each an object in JSON."""
        self._parts.write(lines, step)

    def close(self) -> None:
        """Closes the part; closing twice is fine."""
        self._parts.close()


def _drop_after(workdir: Workdir, step: int) -> None:
    """Removes the records of all steps after the given one."""
    for part in reversed(parts(workdir)):
        if part.number > step:
            part.path.unlink()
        else:
            _cut_after(part.path, step)
            return


def _cut_after(path: Path, step: int) -> None:
    """Cuts a part before the first record of a later step, and before an unfinished line."""
    lines = JsonLinesReader(path).read_all().lines
    later = (line.offset for line in lines if line.record.get("step", step) > step)
    ends = (line.offset + line.size + 1 for line in reversed(lines))
    os.truncate(path, next(later, next(ends, 0)))
