"""Reads a run's spans: at their real times, or with the gaps of resumptions closed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import NamedTuple

from rl_sync.records.json_lines import FileLine, JsonLinesFolder, warn_of_broken
from rl_sync.records.resumption import RESUMED_AT, SFT
from rl_sync.records.spans import Span, SpanKind
from rl_sync.records.summary import summed_up
from rl_sync.workdir import Workdir


class SpanLines:
    """Follows the spans of all roles of a run.

    Args:
      workdir: the run's directory.
      root: see `JsonLinesReader`.
      whole: whether spans keep all their attributes. If not, they have only those that
        `rl_sync.records.summary` reads, which takes a small part of the memory.

    Attributes:
      by_role: spans of each role, ordered by their ends, at their real times. If a run was
        resumed, there is a gap, and repeated steps appear twice.
      wrong: a sentence about the first line that is not a span; None if there is none.
    """

    def __init__(
        self, workdir: str | os.PathLike[str], root: Path | None = None, *, whole: bool = True
    ):
        self._folder = JsonLinesFolder(Workdir(workdir).spans, root)
        self._whole = whole
        self._seams: dict[str, list[_Seam]] = {}
        self._joined: list[Span] | None = None
        self._away: list[tuple[float, float]] | None = None
        self._moves: list[_Move] = []
        self.by_role: dict[str, list[Span]] = {}
        self.wrong: str | None = None

    def refresh(self) -> int:
        """Reads what is new; returns the number of bytes."""
        size = 0
        for path, news in self._folder.read():
            warn_of_broken(path, news.broken)
            if news.is_anew:
                self.by_role[path.stem], self._seams[path.stem] = [], []
            for line in news.lines:
                self._add(path, line)
            if news.size or news.is_anew:
                self._joined = self._away = None
            size += news.size
        return size

    def _add(self, path: Path, line: FileLine) -> None:
        spans, record = self.by_role.setdefault(path.stem, []), line.record
        try:
            if RESUMED_AT in record:
                last = max((span.end_secs for span in spans), default=0.0)
                seam = _Seam(record[RESUMED_AT], record.get(SFT), last, record["began"])
                self._seams.setdefault(path.stem, []).append(seam)
            else:
                span = Span.from_json(record)
                spans.append(span if self._whole else summed_up(span))
        except (KeyError, ValueError, TypeError) as error:
            self.wrong = self.wrong or f"{path}, line {line.number} is not a span: {error!r}"

    @property
    def joined(self) -> list[Span]:
        """All spans ordered by their start, with the gaps closed; see `read_spans`."""
        if self._joined is None:
            spans = [span for of_role in self.by_role.values() for span in of_role]
            seams = [seam for of_role in self._seams.values() for seam in of_role]
            gap, self._moves = 0.0, []
            for seam in sorted(seams, key=lambda seam: seam.began_secs):
                spans, end, closed = seam.joined(spans, gap)
                self._moves.append(_Move(seam.middle_secs, end, gap + closed))
                gap += closed
            spans.sort(key=lambda span: (span.start_secs, span.end_secs))
            self._joined = _counted_once(spans)
        return self._joined

    def away_secs(self, at_secs: float) -> float:
        """Returns the seconds before a moment in which all of the run's processes had ended.

        Args:
          at_secs: real time, in Unix seconds.
        """
        if self._away is None:
            spans = [span for of_role in self.by_role.values() for span in of_role]
            begins = sorted(seam.began_secs for of in self._seams.values() for seam in of)
            self._away = [
                (max((s.end_secs for s in spans if s.start_secs < began), default=began), began)
                for began in begins
            ]
        return sum(max(0.0, min(began, at_secs) - ended) for ended, began in self._away)

    def place(self, at_secs: float) -> float:
        """Returns the time of `joined` at which a moment belongs.

        A moment whose spans are left out belongs to the end of those before it.

        Args:
          at_secs: real time, in Unix seconds.
        """
        gap, _ = 0.0, self.joined
        for move in self._moves:
            if at_secs < move.from_secs:
                return min(at_secs - gap, move.end_secs)
            gap = move.by_secs
        return at_secs - gap


def read_spans(workdir: str | os.PathLike[str]) -> list[Span]:
    """Reads the spans of all roles, ordered by their start.

    A step that a trainer took in vain, since it died before it could report it, has the kind
    `TRAIN_AGAIN`. For a resumed run, spans that a crash made void are left out. The gap between
    the two parts of the run is left out, too: later spans are moved to the end of the earlier
    ones.

    Raises:
      FileNotFoundError: the work directory has no spans.
      ValueError: a line is not a span; the message gives its number.
    """
    files = Workdir(workdir).spans_of("*")
    if not any(files.parent.glob(files.name)):
        raise FileNotFoundError(
            f"{workdir} holds no {files.relative_to(workdir)}: it is not the work directory of a"
            " run, or the run ended before any role started. Give the --workdir that the run was"
            " given."
        )
    spans = SpanLines(workdir)
    while spans.refresh():
        pass
    if spans.wrong is not None:
        raise ValueError(spans.wrong)
    return spans.joined


def _counted_once(spans: list[Span]) -> list[Span]:
    """Returns spans in which each step is trained once: the last time.

    A trainer that died before it could report a step has taken it in vain.
    """
    last: dict[tuple[str, int | None], int] = {
        (span.role, span.step): index
        for index, span in enumerate(spans)
        if span.kind is SpanKind.TRAIN and span.step is not None
    }
    return [
        dataclasses.replace(span, kind=SpanKind.TRAIN_AGAIN)
        if span.kind is SpanKind.TRAIN and last.get((span.role, span.step), index) != index
        else span
        for index, span in enumerate(spans)
    ]


class _Move(NamedTuple):
    """A move of the spans after a seam.

    Attributes:
      from_secs: real time from which on spans are moved.
      end_secs: end of the spans before it, as they are moved.
      by_secs: seconds by which they are moved towards earlier times.
    """

    from_secs: float
    end_secs: float
    by_secs: float


@dataclasses.dataclass(frozen=True)
class _Seam:
    """A point at which a run was resumed.

    Attributes:
      step, sft_step: see `rl_sync.records.resumption.mark`.
      ended_secs, began_secs: time of the trainer's last record before the seam, and of the
        trainer's start after it.
    """

    step: int
    sft_step: int | None
    ended_secs: float
    began_secs: float

    @property
    def middle_secs(self) -> float:
        """Real time that separates the two parts: clocks of other roles are close to these."""
        return (self.ended_secs + self.began_secs) / 2

    def joined(self, spans: list[Span], gap: float) -> tuple[list[Span], float, float]:
        """Drops void spans before the seam, and moves the spans after it to close the gap.

        Args:
          gap: seconds by which the spans have already been moved.

        Returns:
          The spans, the time at which both parts meet, and the further seconds by which those
          after the seam are moved.
        """
        ended, began = self.ended_secs - gap, self.began_secs - gap
        middle = self.middle_secs - gap
        before = [span for span in spans if span.start_secs < middle]
        lost = min((s.start_secs for s in before if self._is_void(s)), default=middle)
        kept = [span for span in before if span.start_secs < lost]
        end = min(ended, max((span.end_secs for span in kept), default=began))
        closed = max(0.0, began - end)
        after = [
            dataclasses.replace(s, start_secs=s.start_secs - closed, end_secs=s.end_secs - closed)
            for s in spans
            if s.start_secs >= middle
        ]
        return kept + after, end, closed

    def _is_void(self, span: Span) -> bool:
        if span.kind is SpanKind.TRAIN:
            return (span.step or 0) > self.step
        is_sft = span.kind is SpanKind.SFT and self.sft_step is not None
        return is_sft and (span.step or 0) > (self.sft_step or 0)
