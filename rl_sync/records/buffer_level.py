"""Contents of the replay buffer over time, derived from the spans of explorers and trainer."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rl_sync.records.spans import Span, SpanKind


class BufferEntry(NamedTuple):
    """Groups of one explorer step that entered the buffer.

    Attributes:
      role: the explorer's role.
      step: the explorer step; None if neither the insert nor the rollout records it.
      start_secs, end_secs: the start of the first insert and the end of the last, in Unix seconds.
      leases: the lease ids of the groups.
    """

    role: str
    step: int | None
    start_secs: float
    end_secs: float
    leases: tuple[int, ...]


class Passage(NamedTuple):
    """Groups that went from one explorer step, through the buffer, to one trainer step."""

    entry: BufferEntry
    train: Span
    leases: tuple[int, ...]


class Level(NamedTuple):
    """Fill level: from `secs` (Unix seconds) on, the buffer holds `groups` groups."""

    secs: float
    groups: int


def entries(spans: Iterable[Span]) -> list[BufferEntry]:
    """Lists the groups that entered the buffer by explorer step, ordered by their end.

    Inserts of one step, such as a stream of single groups, become one entry.
    """
    spans = list(spans)
    steps = {
        (span.role, lease): span.step
        for span in spans
        if span.kind is SpanKind.ROLLOUT
        for lease in span.leases
    }
    by_step: dict[tuple[str, object], list[Span]] = {}
    for index, span in enumerate(spans):
        if span.kind is SpanKind.INSERT and span.leases and "error" not in span.attributes:
            step = span.step if span.step is not None else steps.get((span.role, span.leases[0]))
            key = ("alone", index) if step is None else step
            by_step.setdefault((span.role, key), []).append(span)
    found = [
        BufferEntry(
            role,
            key if isinstance(key, int) else None,
            min(span.start_secs for span in inserts),
            max(span.end_secs for span in inserts),
            tuple(lease for span in inserts for lease in span.leases),
        )
        for (role, key), inserts in by_step.items()
    ]
    return sorted(found, key=lambda entry: entry.end_secs)


def passages(spans: Iterable[Span]) -> list[Passage]:
    """Lists the groups of each explorer step in each trainer step, ordered by trainer step."""
    spans = list(spans)
    found = []
    source = {lease: entry for entry in entries(spans) for lease in entry.leases}
    for train in spans:
        if train.kind is not SpanKind.TRAIN:
            continue
        taken: dict[BufferEntry, list[int]] = {}
        for lease in train.leases:
            if lease in source:
                taken.setdefault(source[lease], []).append(lease)
        found += [Passage(entry, train, tuple(leases)) for entry, leases in taken.items()]
    return sorted(found, key=lambda passage: passage.train.start_secs)


def fill_level(spans: Iterable[Span]) -> list[Level]:
    """Computes the number of groups in the buffer, from each change on.

    A group enters when its insert ends. It leaves at the start of the last train step that names it
    in `leases` (trained on) or in `dropped` (refused).
    """
    entered: dict[int, float] = {}
    left: dict[int, float] = {}
    for span in spans:
        if span.kind is SpanKind.INSERT and "error" not in span.attributes:
            for lease in span.leases:
                entered[lease] = min(span.end_secs, entered.get(lease, span.end_secs))
        elif span.kind is SpanKind.TRAIN:
            for lease in (*span.leases, *span.attributes.get("dropped", ())):
                left[lease] = max(span.start_secs, left.get(lease, span.start_secs))
    changes: Counter[float] = Counter()
    for lease, secs in entered.items():
        changes[secs] += 1
        if lease in left:
            # A sample can be recorded a moment before the insert that it answers returns.
            changes[max(secs, left[lease])] -= 1
    levels, groups = [], 0
    for secs in sorted(changes):
        groups += changes[secs]
        levels.append(Level(secs, groups))
    return levels


def level_at(levels: Sequence[Level], secs: float) -> int:
    """Returns the number of groups at a time; 0 before the first change."""
    index = bisect.bisect_right(levels, secs, key=lambda level: level.secs)
    return levels[index - 1].groups if index else 0
