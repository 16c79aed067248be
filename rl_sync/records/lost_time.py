"""Follows the time that a run loses when roles die, at little cost while it goes on."""

from __future__ import annotations

import collections
import os
import time
from pathlib import Path

from rl_sync.records.json_lines import JsonLinesReader
from rl_sync.records.outages import LostTime, Restart, lost_time
from rl_sync.records.span_reader import SpanLines
from rl_sync.records.summary import rl_phase
from rl_sync.workdir import Workdir

_MOST_SHARE = 0.02


class RestartLines:
    """Follows the restarts of a run.

    Args:
      workdir: the run's directory.
      root: see `JsonLinesReader`.

    Attributes:
      counts: number of restarts of each role, without those after which its work went on.
      times: roles that were started again, in order, at real times.
    """

    def __init__(self, workdir: str | os.PathLike[str], root: Path | None = None):
        self._reader = JsonLinesReader(Workdir(workdir).restarts, root)
        self.counts: collections.Counter[str] = collections.Counter()
        self.times: list[Restart] = []

    def refresh(self) -> int:
        """Reads what is new; returns the number of bytes."""
        news = self._reader.read()
        if news.is_anew:
            self.counts.clear()
            self.times.clear()
        for line in news.lines:
            role, at_secs = str(line.record.get("role")), line.record.get("time")
            self.counts[role] += not line.record.get("handed_over")
            if isinstance(at_secs, int | float):
                self.times.append(Restart(role, at_secs))
        return news.size

    def placed(self, spans: SpanLines) -> list[Restart]:
        """Returns the restarts at times of `SpanLines.joined`."""
        return [Restart(role, spans.place(at_secs)) for role, at_secs in self.times]


class LostTimeWatch:
    """Computes the lost time of a run from its first rollout to its last train step so far.

    It takes a small share of one core at most: in long runs it computes less often.

    Args:
      restarts, spans: records of the run, which others may refresh, too.
    """

    def __init__(self, restarts: RestartLines, spans: SpanLines):
        self._restarts, self._spans = restarts, spans
        self._last, self._next_secs = LostTime(), 0.0

    def refresh(self) -> None:
        """Reads the restarts, and spans if there are any."""
        while self._restarts.refresh():
            pass
        while self._restarts.times and self._spans.refresh():
            pass

    def now(self) -> LostTime:
        """Returns the time that was lost when it was last computed."""
        if not self._restarts.times:
            return LostTime()
        began_secs = time.monotonic()
        if began_secs >= self._next_secs:
            self._last = self._computed()
            ended_secs = time.monotonic()
            self._next_secs = ended_secs + (ended_secs - began_secs) / _MOST_SHARE
        return self._last

    def _computed(self) -> LostTime:
        spans = self._spans.joined
        try:
            start_secs, end_secs = rl_phase(spans)
        except ValueError:  # RL has not begun.
            return LostTime()
        return lost_time(self._restarts.placed(self._spans), spans, start_secs, end_secs)
