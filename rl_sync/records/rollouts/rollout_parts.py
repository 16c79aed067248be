"""Writes the records of rollouts; their reader is `rl_sync.records.rollouts.rollout_records`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from rl_sync.records.json_lines import JsonLinesReader, JsonLinesWriter
from rl_sync.records.rollouts.rollout_records import part_name, parts
from rl_sync.workdir import Workdir

PART_BYTES = 8 << 20
"""Size in bytes at which a part is closed and another begins."""

_log = logging.getLogger(__name__)


class RolloutParts:
    """Appends encoded records to `workdir/rollouts/`, and never raises an error of the disk.

    Records that cannot be written are dropped. The log says so once, until writing works again.

    Args:
      workdir: work directory of the run.
      start: trainer step that the run resumes from; records of later steps are removed.
      part_bytes: size of parts, in bytes.
    """

    def __init__(
        self, workdir: str | os.PathLike[str], start: int = 0, part_bytes: int = PART_BYTES
    ):
        self._workdir, self._part_bytes = Workdir(workdir), part_bytes
        self._part: JsonLinesWriter | None = None
        self._in_part = 0
        self._failed = False
        self.size_bytes = 0
        try:
            _drop_after(self._workdir, start)
            self.size_bytes = sum(part.path.stat().st_size for part in parts(workdir))
        except OSError as error:
            self._give_up(error)

    def write(self, step: int, lines: Sequence[bytes]) -> None:
        """Appends the records of one step, each an object in JSON."""
        if not lines:
            return
        try:
            if self._part is None or self._in_part >= self._part_bytes:
                self._open(step)
        except OSError as error:
            self._give_up(error)
            return
        assert self._part is not None
        self._failed = False
        written = self._part.write_encoded(lines)
        self._in_part += written
        self.size_bytes += written

    def close(self) -> None:
        """Closes the part; closing twice is fine."""
        if self._part is not None:
            self._part.close()

    def _open(self, step: int) -> None:
        self.close()
        self._part = None
        path = self._workdir.rollouts / part_name(step)
        self._part = JsonLinesWriter(path, vital=False)
        self._in_part = path.stat().st_size

    def _give_up(self, error: OSError) -> None:
        if not self._failed:
            _log.warning(
                "Rollouts cannot be recorded in %s: %s. The run goes on without these records.",
                self._workdir.rollouts,
                error.strerror or error,
            )
        self._failed = True


def _drop_after(workdir: Workdir, step: int) -> None:
    """Removes the records of all steps after the given one."""
    for part in reversed(parts(workdir)):
        if part.first_step > step:
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
