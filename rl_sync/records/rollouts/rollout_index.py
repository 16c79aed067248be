"""Index of the records of rollouts: small rows to filter and sort, and whole records on demand."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from rl_sync.records.json_lines import FileLine, JsonLinesFolder, is_inside
from rl_sync.records.rollouts.rollout_records import Rollout, RolloutFilter, ordered
from rl_sync.workdir import Workdir

SEARCH_SECS = 3.0
"""Maximum seconds of a search for a text."""

_EXCERPT = 160
_MOST_NEW_BYTES = 64 << 20


class TableRow(NamedTuple):
    """A completion in the table: figures, excerpts, and the place of its record.

    Attributes:
      drawn_tokens, mean_logprob: see `Rollout`.
      path, offset, size: the place of the record, in bytes.
    """

    step: int
    lease: int
    prompt_id: int
    sample: int
    reward: float | None
    advantage: float | None
    drawn_tokens: int
    staleness: int
    mean_logprob: float | None
    truncated: bool
    prompt: str
    completion: str
    why: str
    path: Path
    offset: int
    size: int


class Found(NamedTuple):
    """Rows in order; `is_cut` is true if the search ended before it had seen all records."""

    rows: list[TableRow]
    is_cut: bool


class RolloutIndex:
    """Follows the records of rollouts.

    Args:
      workdir: the run's directory.
      root: see `JsonLinesReader`.
    """

    def __init__(self, workdir: str | os.PathLike[str], root: Path | None = None):
        self._root = root
        self._folder = JsonLinesFolder(Workdir(workdir).rollouts, root)
        self._rows: dict[Path, list[TableRow]] = {}

    def refresh(self) -> int:
        """Reads new records, up to a limit; returns the number of bytes."""
        size = 0
        for path, news in self._folder.read():
            rows = self._rows.setdefault(path, [])
            if news.is_anew:
                rows.clear()
            rows += filter(None, (_row(path, line) for line in news.lines))
            size += news.size
            if size > _MOST_NEW_BYTES:
                break
        return size

    @property
    def count(self) -> int:
        """The number of completions."""
        return sum(map(len, self._rows.values()))

    @property
    def last_step(self) -> int | None:
        """The last trainer step that has records; None if none has."""
        return max((rows[-1].step for rows in self._rows.values() if rows), default=None)

    def find(self, selection: RolloutFilter = RolloutFilter(), order: str = "step") -> Found:  # noqa: B008
        """Returns the rows that fulfil all conditions, in the given order; see `ordered`.

        Raises:
          TimeoutError: see `RolloutFilter.finds`.
        """
        rows = [
            row for path in sorted(self._rows) for row in filter(selection.fits, self._rows[path])
        ]
        rows = ordered(rows, order)
        if selection.pattern is None:
            return Found(rows, False)
        found, end = list[TableRow](), time.monotonic() + SEARCH_SECS
        for row in rows:
            if time.monotonic() > end:
                return Found(found, True)
            one = self.whole(row)
            if one is not None and selection.finds(one):
                found.append(row)
        return Found(found, False)

    def whole(self, row: TableRow) -> Rollout | None:
        """Reads the record of a row; None if it is gone."""
        if self._root is not None and not is_inside(row.path, self._root):
            return None
        try:
            with open(row.path, "rb") as file:
                file.seek(row.offset)
                return Rollout.from_json(orjson.loads(file.read(row.size)))
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def wholes(self, rows: Iterable[TableRow]) -> Iterator[Rollout]:
        """Reads the records of rows, without those that are gone."""
        return filter(None, map(self.whole, rows))


def _row(path: Path, line: FileLine) -> TableRow | None:
    """Makes the row of a record; None if the record is broken."""
    try:
        one = Rollout.from_json(line.record)
        return TableRow(
            step=one.step,
            lease=one.lease,
            prompt_id=one.prompt_id,
            sample=one.sample,
            reward=one.reward,
            advantage=one.advantage,
            drawn_tokens=one.drawn_tokens,
            staleness=one.staleness,
            mean_logprob=one.mean_logprob,
            truncated=one.truncated,
            prompt=one.prompt[-_EXCERPT:],
            completion=one.said[:_EXCERPT],
            why=one.why[:_EXCERPT],
            path=path,
            offset=line.offset,
            size=line.size,
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
