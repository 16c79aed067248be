"""Contents of the replay buffer over time, derived from the spans of explorers and trainer."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rl_sync.records.spans import Span, SpanKind
from rl_sync.records.summary import of_kind


class BufferEntry(NamedTuple):
    """Groups of one explorer step that entered the buffer.

    Attributes:
      role: the explorer's role.
      step: the explorer step; None if neither the insert nor the rollout records it.
      start_secs: the start of the first insert, in Unix seconds.
      end_secs: the time at which the last of the groups was in the buffer; see `arrivals`.
      leases: the lease ids of the groups.
    """

    role: str
    step: int | None
    start_secs: float
    end_secs: float
    leases: tuple[int, ...]


class Level(NamedTuple):
    """Fill level: from `secs` (Unix seconds) on, the buffer holds `groups` groups."""

    secs: float
    groups: int


class Arrival(NamedTuple):
    """The time at which a group entered the buffer, in Unix seconds, and its insert."""

    secs: float
    insert: Span


def arrivals(spans: Iterable[Span]) -> dict[int, Arrival]:
    """Finds the arrival of each group in the buffer, by its lease.

    A group enters when its insert ends. The trainer may take it before the explorer has the answer
    that ends the insert; such a group enters when its insert starts, and no later than it is taken.
    """
    spans, found = list(spans), dict[int, Arrival]()
    taken = _taken(spans, min)
    for insert in of_kind(spans, SpanKind.INSERT):
        if "error" in insert.attributes:
            continue
        for lease in insert.leases:
            secs, first_use = insert.end_secs, taken.get(lease)
            if first_use is not None and first_use <= secs:
                secs = min(insert.start_secs, first_use)
            if lease not in found or secs < found[lease].secs:
                found[lease] = Arrival(secs, insert)
    return found


def _taken(spans: Sequence[Span], which: Callable[[float, float], float]) -> dict[int, float]:
    """Finds the first or the last time at which the trainer took each group, or refused it."""
    found: dict[int, float] = {}
    for train in of_kind(spans, SpanKind.TRAIN):
        for lease in (*train.leases, *train.attributes.get("dropped", ())):
            found[lease] = which(train.start_secs, found.get(lease, train.start_secs))
    for wait in of_kind(spans, SpanKind.WAIT):
        for lease in wait.attributes.get("dropped", ()):
            found[lease] = which(wait.end_secs, found.get(lease, wait.end_secs))
    return found


def entries(spans: Iterable[Span]) -> list[BufferEntry]:
    """Lists the groups that entered the buffer by explorer step, ordered by their end.

    Inserts of one step, such as a stream of single groups, become one entry.
    """
    spans = list(spans)
    steps = {
        (rollout.role, lease): rollout.step
        for rollout in of_kind(spans, SpanKind.ROLLOUT)
        for lease in rollout.leases
    }
    by_step: dict[tuple[str, object], dict[int, Arrival]] = {}
    for lease, arrival in arrivals(spans).items():
        insert = arrival.insert
        step = insert.step if insert.step is not None else steps.get((insert.role, lease))
        key = insert if step is None else step
        by_step.setdefault((insert.role, key), {})[lease] = arrival
    found = [
        BufferEntry(
            role,
            key if isinstance(key, int) else None,
            min(one.insert.start_secs for one in groups.values()),
            max(one.secs for one in groups.values()),
            tuple(groups),
        )
        for (role, key), groups in by_step.items()
    ]
    return sorted(found, key=lambda entry: entry.end_secs)


def fill_level(spans: Iterable[Span]) -> list[Level]:
    """Computes the number of groups in the buffer, from each change on.

    A group enters as `arrivals` says. It leaves at the start of the last train step that names it
    in `leases` (trained on) or in `dropped` (refused). The order of the spans does not matter.
    """
    spans = list(spans)
    left, changes = _taken(spans, max), Counter[float]()
    for lease, arrival in arrivals(spans).items():
        changes[arrival.secs] += 1
        if lease in left:
            changes[left[lease]] -= 1
    levels, groups = [], 0
    for secs in sorted(changes):
        groups += changes[secs]
        levels.append(Level(secs, groups))
    return levels


def level_at(levels: Sequence[Level], secs: float) -> int:
    """Returns the number of groups at a time; 0 before the first change."""
    index = bisect.bisect_right(levels, secs, key=lambda level: level.secs)
    return levels[index - 1].groups if index else 0
