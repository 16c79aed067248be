"""Index of the records of rollouts: small rows to filter and sort, and whole records at need."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from rl_sync.page.tail import FileLine, Tail, is_inside
from rl_sync.records.rollout_records import Rollout, parts

SEARCH_SECS = 3.0
"""The longest that a search for a text takes."""

_EXCERPT = 160
_MOST_NEW_BYTES = 64 << 20


class TableRow(NamedTuple):
    """A completion in the table: figures, excerpts, and the place of its record.

    Attributes:
      tokens: the number of tokens that the policy drew.
      logprob: the mean of their log-probabilities, in nats; None if there are none.
      path, offset, size: the place of the record, in bytes.
    """

    step: int
    lease: int
    prompt_id: int
    sample: int
    reward: float | None
    advantage: float | None
    tokens: int
    staleness: int
    logprob: float | None
    truncated: bool
    prompt: str
    completion: str
    why: str
    path: Path
    offset: int
    size: int


KEYS: Mapping[str, Callable[[TableRow], float | None]] = {
    "step": lambda row: row.step,
    "reward": lambda row: row.reward,
    "advantage": lambda row: row.advantage,
    "tokens": lambda row: row.tokens,
    "staleness": lambda row: row.staleness,
    "logprob": lambda row: row.logprob,
}
"""From the name of an order to a function of a row; None comes last."""


class Query(NamedTuple):
    """Conditions on completions, and their order; None and empty stand for any.

    Attributes:
      first_step, last_step, lease, prompt_id: see `Rollout`.
      least, greatest: bounds of the reward.
      text: found in the prompt or in what was said, in capitals or not.
      sort: a key of `KEYS`, with a - in front if the greatest come first.
    """

    first_step: int | None = None
    last_step: int | None = None
    lease: int | None = None
    prompt_id: int | None = None
    least: float | None = None
    greatest: float | None = None
    text: str = ""
    sort: str = "-step"

    def holds(self, row: TableRow) -> bool:
        """Says whether a row fulfils all conditions but the text."""
        if self.first_step is not None and row.step < self.first_step:
            return False
        if self.last_step is not None and row.step > self.last_step:
            return False
        if self.lease not in (None, row.lease) or self.prompt_id not in (None, row.prompt_id):
            return False
        if self.least is not None and (row.reward is None or row.reward < self.least):
            return False
        return self.greatest is None or (row.reward is not None and row.reward <= self.greatest)


class Found(NamedTuple):
    """Rows in their order; `is_cut` says that a search ended before it had seen all."""

    rows: list[TableRow]
    is_cut: bool


class Samples:
    """Follows the records of rollouts.

    Args:
      workdir: the run's directory.
    """

    def __init__(self, workdir: Path):
        self._workdir = workdir
        self._tails: dict[Path, Tail] = {}
        self._rows: dict[Path, list[TableRow]] = {}

    def refresh(self) -> None:
        """Reads what is new, up to a limit: what is left over comes with the next call."""
        left = _MOST_NEW_BYTES
        paths = [part.path for part in parts(self._workdir)]
        for path in self._rows.keys() - set(paths):
            del self._rows[path], self._tails[path]
        for path in paths:
            news = self._tails.setdefault(path, Tail(path, self._workdir)).read()
            rows = self._rows.setdefault(path, [])
            if news.is_anew:
                rows.clear()
            rows += filter(None, (_row(path, line) for line in news.lines))
            left -= sum(line.size for line in news.lines)
            if left < 0:
                return

    @property
    def count(self) -> int:
        """The number of completions."""
        return sum(map(len, self._rows.values()))

    @property
    def last_step(self) -> int | None:
        """The last trainer step that has records; None if none has."""
        return max((rows[-1].step for rows in self._rows.values() if rows), default=None)

    def find(self, query: Query) -> Found:
        """Returns the rows that fulfil all conditions, in their order."""
        rows = [row for of in self._rows.values() for row in of if query.holds(row)]
        rows = _ordered(rows, query.sort)
        if not query.text:
            return Found(rows, False)
        return self._search(rows, query.text.casefold())

    def _search(self, rows: Iterable[TableRow], text: str) -> Found:
        found: list[TableRow] = []
        end = time.monotonic() + SEARCH_SECS
        for row in rows:
            if time.monotonic() > end:
                return Found(found, True)
            one = self.whole(row)
            if one and (text in one.prompt.casefold() or text in one.said.casefold()):
                found.append(row)
        return Found(found, False)

    def whole(self, row: TableRow) -> Rollout | None:
        """Reads the record of a row; None if it is there no longer."""
        if not is_inside(row.path, self._workdir):
            return None
        try:
            with open(row.path, "rb") as file:
                file.seek(row.offset)
                return _rollout(orjson.loads(file.read(row.size)))
        except (OSError, ValueError, TypeError):
            return None

    def wholes(self, rows: Iterable[TableRow]) -> Iterator[Rollout]:
        """Reads the records of rows; those that are there no longer are left out."""
        return filter(None, map(self.whole, rows))


def _ordered(rows: list[TableRow], order: str) -> list[TableRow]:
    """Sorts rows; those that are equal come by step, lease and sample."""
    value, sign = KEYS[order.removeprefix("-")], -1 if order.startswith("-") else 1

    def rank(row: TableRow) -> tuple[Any, ...]:
        number = value(row)
        return number is None, sign * (number or 0.0), row.step, row.lease, row.sample

    return sorted(rows, key=rank)


_FIELDS = Rollout.__dataclass_fields__.keys()


def _rollout(record: dict[str, Any]) -> Rollout:
    return Rollout(**{name: record[name] for name in record.keys() & _FIELDS})


def _row(path: Path, line: FileLine) -> TableRow | None:
    """Makes the row of a record; None if the record is broken."""
    try:
        one = _rollout(line.record)
        logprobs = [value for value in one.logprobs if value is not None]
        return TableRow(
            step=one.step,
            lease=one.lease,
            prompt_id=one.prompt_id,
            sample=one.sample,
            reward=one.reward,
            advantage=one.advantage,
            tokens=one.drawn_tokens,
            staleness=one.staleness,
            logprob=statistics.fmean(logprobs) if logprobs else None,
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
