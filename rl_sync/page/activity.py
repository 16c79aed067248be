"""Activity of the roles of a run: shares of their time, versions that they hold, the timeline."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.page.tail import Tail, is_inside
from rl_sync.records.resumption import RESUMED_AT
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import (
    WORK_KINDS,
    Interval,
    clipped,
    of_kind,
    uncovered,
    union,
    union_secs,
)
from rl_sync.role_names import TRAINER, role_order
from rl_sync.workdir import Workdir

RECENT_SECS = 60.0
"""The stretch at the end of the records over which shares of time are told."""

_ATTRIBUTES = ("step", "version", "reason", "for_whom", "background", "error", "tokens")
_ASIDE = frozenset(
    {SpanKind.SCORE, SpanKind.INSERT, SpanKind.SNAPSHOT, SpanKind.COMPILE, SpanKind.EVALUATION}
)
_ASIDE_SHARE = 0.2


class Wait(NamedTuple):
    """A wait of a role: its reason, for whom, and the share of the time."""

    reason: str
    for_whom: str
    share: float


class RoleNow(NamedTuple):
    """A role at the end of the records.

    Attributes:
      last: words for the span that ended last.
      last_secs: its end, in Unix seconds.
      busy, sync: shares of the recent time at work, and moving weights.
      waits: the waits of the recent time, longest first.
      version: the policy version that it has last published or pulled; None if there is none.
    """

    name: str
    last: str
    last_secs: float
    busy: float
    sync: float
    waits: tuple[Wait, ...]
    version: int | None


class Activity:
    """Follows the spans of all roles.

    Spans are at the times at which they happened: where a run was resumed there is a gap, and steps
    that were repeated are there twice.

    Args:
      workdir: the run's directory.
    """

    def __init__(self, workdir: Path):
        self._workdir = workdir
        self._tails: dict[str, Tail] = {}
        self.spans: dict[str, list[Span]] = {}

    def refresh(self) -> None:
        """Reads what is new."""
        folder = Workdir(self._workdir).spans
        if not is_inside(folder, self._workdir) or not folder.is_dir():
            return
        for path in sorted(folder.glob("*.jsonl")):
            tail = self._tails.setdefault(path.stem, Tail(path, self._workdir))
            news = tail.read()
            if news.is_anew:
                self.spans[path.stem] = []
            spans = self.spans.setdefault(path.stem, [])
            found = (_span(path.stem, line.record) for line in news.lines)
            spans += [span for span in found if span is not None]

    @property
    def roles(self) -> list[str]:
        """The roles that have recorded something: explorers, the trainer, then others."""
        return sorted((role for role, spans in self.spans.items() if spans), key=role_order)

    @property
    def period(self) -> Interval:
        """The start of the first and the end of the last span, in Unix seconds; 0 without any."""
        every = [spans for spans in self.spans.values() if spans]
        if not every:
            return 0.0, 0.0
        return min(s[0].start_secs for s in every), max(s[-1].end_secs for s in every)

    def now(self) -> list[RoleNow]:
        """Describes each role at the end of the records."""
        start, end = self.period
        start = max(start, end - RECENT_SECS)
        return [self._role(role, start, end) for role in self.roles]

    def _role(self, role: str, start: float, end: float) -> RoleNow:
        spans, wall = self.spans[role], max(end - start, 1e-9)
        recent = clipped(_ending_after(spans, start), start, end)
        work, syncs = of_kind(recent, *WORK_KINDS), of_kind(recent, *SYNC_KINDS)
        busy = union_secs(work)
        by_reason: dict[tuple[str, str], list[Span]] = {}
        # One thread may wait for the next batch while another works: the role does not wait then.
        idle = [part for w in of_kind(recent, SpanKind.WAIT) for part in uncovered(w, work)]
        for span in idle:
            named = span.attributes.get("reason", "something"), span.attributes.get("for_whom", "")
            by_reason.setdefault(named, []).append(span)
        waits = [Wait(*named, union_secs(of) / wall) for named, of in by_reason.items()]
        versions = self.versions(role)
        return RoleNow(
            role,
            _words(spans[-1]),
            spans[-1].end_secs,
            busy=busy / wall,
            sync=(union_secs(work + syncs) - busy) / wall,
            waits=tuple(sorted(waits, key=lambda wait: -wait.share)),
            version=versions[-1][1] if versions else None,
        )

    def versions(self, role: str) -> list[tuple[float, int]]:
        """Lists when a role published or pulled a version: Unix seconds and the version."""
        return [
            (span.end_secs, span.version)
            for span in self.spans.get(role, ())
            if span.kind in SYNC_KINDS and span.version is not None and not _failed(span)
        ]

    def lane(self, role: str, start: float, end: float, pixels: int) -> list[list[Any]]:
        """Lists a role's blocks in a window, for a picture of so many pixels.

        Of blocks narrower than half a pixel, one of a kind is given for each pixel.

        Returns:
          For each block its kind, start and end in Unix seconds, label, and 1 if it goes aside,
          into a strip that hides nothing; those to be drawn first come first.
        """
        least = (end - start) / max(pixels, 1) / 2
        visible = clipped(_ending_after(self.spans.get(role, []), start), start, end)
        main = union(s for s in visible if s.kind in WORK_KINDS and s.kind not in _ASIDE)
        blocks: list[list[Any]] = []
        taken: set[tuple[str, int]] = set()
        for span in sorted(visible, key=_layer):
            if span.duration_secs < least:
                column = (str(span.kind), int((span.start_secs - start) / (2 * least)))
                if column in taken:
                    continue
                taken.add(column)
            aside = span.attributes.get("background") or (
                span.kind in _ASIDE and _covered(span, main) > _ASIDE_SHARE * span.duration_secs
            )
            blocks.append(
                [str(span.kind), span.start_secs, span.end_secs, _label(span), int(bool(aside))]
            )
        return blocks


def newest_version(activity: Activity) -> int | None:
    """The version that the trainer published last; None if there is none."""
    published = activity.versions(TRAINER)
    return published[-1][1] if published else None


def _span(role: str, record: dict[str, Any]) -> Span | None:
    """Reads a span, with the attributes that are shown; None for a mark or a broken one."""
    if RESUMED_AT in record:
        return None
    try:
        span = Span.from_json({**record, "role": role})
        some = {name: span.attributes[name] for name in _ATTRIBUTES if name in span.attributes}
        return Span(role, span.kind, span.start_secs, span.end_secs, some)
    except (KeyError, ValueError, TypeError):
        return None


def _ending_after(spans: list[Span], secs: float) -> list[Span]:
    """Returns the spans from the first on that ends after a time; they are in order of ends."""
    return spans[bisect.bisect_right(spans, secs, key=lambda span: span.end_secs) :]


def _layer(span: Span) -> tuple[int, float]:
    """Waits lie under work, long work under short work, and syncs on top."""
    layer = 0 if span.kind is SpanKind.WAIT else 2 if span.kind in SYNC_KINDS else 1
    return layer, -span.duration_secs


def _covered(span: Span, intervals: list[Interval]) -> float:
    """Returns the seconds of a span that lie in disjoint intervals, which are in order."""
    first = bisect.bisect_left(intervals, span.start_secs, key=lambda one: one[1])
    total = 0.0
    for left, right in intervals[first:]:
        if left >= span.end_secs:
            break
        total += min(right, span.end_secs) - max(left, span.start_secs)
    return total


def _failed(span: Span) -> bool:
    return "error" in span.attributes


def _label(span: Span) -> str:
    if span.kind is SpanKind.WAIT:
        return f"wait for {span.attributes.get('reason', 'something')}"
    version = "" if span.version is None else f"v{span.version}"
    if span.kind is SpanKind.ROLLOUT:
        return " · ".join(filter(None, ["" if span.step is None else f"e{span.step}", version]))
    if span.kind is SpanKind.TRAIN and span.step is not None:
        return f"t{span.step}"
    if span.kind in SYNC_KINDS:
        return version
    return SPAN_STYLES[span.kind].words


def _words(span: Span) -> str:
    label, words = _label(span), SPAN_STYLES[span.kind].words
    return label if label.startswith(words) else f"{words} {label}".strip()
