"""Summary of a run's time: busy and idle shares, overlap, waits, throughput, staleness.

All functions are pure functions of spans. Shares and waits are counted over the *RL phase*, from
the start of the first rollout to the end of the last train step.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from rl_sync.records.json_lines import JsonObject
from rl_sync.records.outages import LostTime, Restart, lost_time
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.tokens.lease_columns import LeaseColumn
from rl_sync.role_names import MASTER, TRAINER, is_explorer, role_order

_UNKNOWN = -1
Interval = tuple[float, float]
Name = TypeVar("Name", bound=Hashable)

COMPUTING_KINDS = SYNC_KINDS | {
    SpanKind.ROLLOUT,
    SpanKind.TRAIN,
    SpanKind.TRAIN_AGAIN,
    SpanKind.EVALUATION,
    SpanKind.COMPILE,
}
"""Kinds of spans in which devices compute, or weights move."""

_OF_ENGINES = ("drafted_tokens", "accepted_tokens")
_SUMMED_UP = ("step", "version", "versions", "tokens", "carried_over", "evaluating_secs", "reason")
"""Attributes of spans that a summary reads, besides leases and counts of engines."""

WORK_KINDS = frozenset(SpanKind) - SYNC_KINDS - {SpanKind.WAIT}


@dataclasses.dataclass(frozen=True)
class RoleSummary:
    """One role's time in the RL phase.

    Attributes:
      busy_secs: seconds with work of any kind in at least one thread.
      sync_secs: seconds without work in which weights are moved.
      idle_secs: the other seconds: waits, and time without spans.
      wait_secs: seconds by the reason of the wait, longest first. Only time in which the role
        neither works nor moves weights counts: one thread may wait for the next batch while
        another trains.
    """

    role: str
    busy_secs: float
    sync_secs: float
    idle_secs: float
    wait_secs: dict[str, float]

    @property
    def busy_share(self) -> float:
        return self.busy_secs / (self.busy_secs + self.sync_secs + self.idle_secs)

    @property
    def sync_share(self) -> float:
        return self.sync_secs / (self.busy_secs + self.sync_secs + self.idle_secs)

    @property
    def idle_share(self) -> float:
        return self.idle_secs / (self.busy_secs + self.sync_secs + self.idle_secs)


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """A run's time and throughput in the RL phase.

    Attributes:
      wall_secs: the duration of the phase.
      roles: the summary of each role, explorers first.
      rollout_secs, train_secs: the total time, summed over explorers.
      overlap_secs: seconds in which at least one explorer generated while the trainer trained.
      wait_secs: seconds by the reason of the wait, summed over roles; see `RoleSummary`.
      rollout_tokens, trained_tokens: totals of the rollouts and train steps that ended in the
        phase.
      carried_over: number of unfinished groups that a rollout left to the next one.
      trainer_steps: the number of train steps.
      mean_staleness, max_staleness: over trained groups, in trainer steps; None without groups.
      idle_secs: seconds in which no role computes or moves weights, so that all devices are idle.
      evaluating_secs: part of the rollouts in which they stood still for an explorer's evaluation.
      lost: time that the phase lost when roles died.
      drafted_tokens, accepted_tokens: numbers of tokens that were drafted in the rollouts, and of
        those that were drawn.
    """

    wall_secs: float
    roles: tuple[RoleSummary, ...]
    rollout_secs: float
    train_secs: float
    overlap_secs: float
    wait_secs: dict[str, float]
    rollout_tokens: int
    trained_tokens: int
    carried_over: int
    trainer_steps: int
    mean_staleness: float | None
    max_staleness: int | None
    idle_secs: float = 0.0
    evaluating_secs: float = 0.0
    lost: LostTime = dataclasses.field(default_factory=LostTime)
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def rollout_tokens_per_sec(self) -> float:
        return self.rollout_tokens / self.wall_secs

    @property
    def trained_tokens_per_sec(self) -> float:
        return self.trained_tokens / self.wall_secs

    @property
    def ideal_ratio(self) -> float:
        """The least wall time with perfect overlap, as a share of doing all work in sequence.

        It is the longer of total rollout and total train time, divided by their sum: 0.5 when both
        are equal.
        """
        return max(self.rollout_secs, self.train_secs) / (self.rollout_secs + self.train_secs)

    @property
    def achieved_ratio(self) -> float:
        """The wall time as a share of total rollout and train time: compare with `ideal_ratio`."""
        return self.wall_secs / (self.rollout_secs + self.train_secs)

    @property
    def explorer_idle_share(self) -> float:
        """The mean idle share of the explorers."""
        shares = [role.idle_share for role in self.roles if is_explorer(role.role)]
        return sum(shares) / len(shares)

    @property
    def trainer_idle_share(self) -> float:
        return self.role(TRAINER).idle_share

    def role(self, name: str) -> RoleSummary:
        """Returns the summary of one role.

        Raises:
          KeyError: the role recorded nothing.
        """
        return {summary.role: summary for summary in self.roles}[name]


def of_kind(spans: Iterable[Span], *kinds: SpanKind, role: str | None = None) -> list[Span]:
    """Returns the spans of some kinds, of one role or of all."""
    return [span for span in spans if span.kind in kinds and role in (None, span.role)]


def union(spans: Iterable[Span]) -> list[Interval]:
    """Returns the times in which at least one span is open, as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted((span.start_secs, span.end_secs) for span in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def union_secs(spans: Iterable[Span]) -> float:
    """Returns the seconds in which at least one span is open."""
    return sum(end - start for start, end in union(spans))


def overlap_secs(spans_a: Iterable[Span], spans_b: Iterable[Span]) -> float:
    """Returns the seconds in which at least one span of each side is open."""
    a, b = union(spans_a), union(spans_b)
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return total


def uncovered(span: Span, intervals: Sequence[Interval]) -> list[Span]:
    """Returns the parts of a span outside of disjoint intervals, which are given in order."""
    parts, start = [], span.start_secs
    at = bisect.bisect_right(intervals, start, key=lambda one: one[1])
    while at < len(intervals) and intervals[at][0] < span.end_secs:
        left, right = intervals[at]
        if left > start:
            parts.append(dataclasses.replace(span, start_secs=start, end_secs=left))
        start, at = right, at + 1
    if start < span.end_secs:
        parts.append(dataclasses.replace(span, start_secs=start))
    return parts


def rl_phase(spans: Iterable[Span]) -> Interval:
    """Returns the start of the first rollout and the end of the last train step (Unix seconds).

    Raises:
      ValueError: there is no rollout or no train step, or no train step after a rollout.
    """
    spans = list(spans)
    rollouts, trains = of_kind(spans, SpanKind.ROLLOUT), of_kind(spans, SpanKind.TRAIN)
    if not rollouts or not trains:
        raise ValueError(
            f"The run recorded {len(rollouts)} rollouts and {len(trains)} train steps: it has no"
            " RL phase to sum up. Let it run for at least one trainer step."
        )
    start = min(span.start_secs for span in rollouts)
    end = max(span.end_secs for span in trains)
    if end <= start:
        raise ValueError("All train steps ended before the first rollout: no RL phase to sum up.")
    return start, end


def clipped(spans: Iterable[Span], start_secs: float, end_secs: float) -> list[Span]:
    """Clips spans to a window, and drops those outside."""
    return [
        dataclasses.replace(
            span,
            start_secs=max(span.start_secs, start_secs),
            end_secs=min(span.end_secs, end_secs),
        )
        for span in spans
        if span.end_secs > start_secs and span.start_secs < end_secs
    ]


def staleness(spans: Iterable[Span]) -> list[int]:
    """Returns the staleness of every trained group, in trainer steps: step - 1 - version.

    A group's version is the version of its rollout. A version that the train step recorded counts
    too, as if for one more group, if it is older than those of all rollouts (weights change during
    a rollout), or if no rollout is known.
    """
    spans = list(spans)
    versions = LeaseColumn(_UNKNOWN)
    for rollout in of_kind(spans, SpanKind.ROLLOUT):
        if (version := rollout.version) is not None:
            for lease in versions.room(rollout.leases):
                versions.values[lease] = version
    found, known = list[int](), len(versions.values)
    for train in of_kind(spans, SpanKind.TRAIN):
        if (step := train.step) is None:
            continue
        batch = [versions.values[lease] for lease in train.leases if 0 <= lease < known]
        batch = [version for version in batch if version != _UNKNOWN]
        recorded = train.attributes.get("versions") or []
        missing = [version for version in recorded if not batch or version < min(batch)]
        found += [step - 1 - version for version in (*batch, *missing)]
    return found


def summed_up(span: Span) -> Span:
    """Returns a span with only the attributes that a summary reads.

    Leases, of which a run has very many, are left only to rollouts and train steps.
    """
    old = span.attributes
    new: JsonObject = {name: old[name] for name in _SUMMED_UP if name in old}
    if span.kind in (SpanKind.ROLLOUT, SpanKind.TRAIN) and "leases" in old:
        new["leases"] = array("q", old["leases"])
    if engine := old.get("engine"):
        new["engine"] = {name: engine[name] for name in _OF_ENGINES if name in engine}
    return dataclasses.replace(span, attributes=new)


def summarize(spans: Iterable[Span], restarts: Iterable[Restart] = ()) -> RunSummary:
    """Sums up a run.

    Args:
      restarts: roles that died, and were started again, at times of the same clock.

    Raises:
      ValueError: there is no RL phase; see `rl_phase`.
    """
    spans = list(spans)
    start_secs, end_secs = rl_phase(spans)
    phase = clipped(spans, start_secs, end_secs)
    roles = tuple(
        summarize_role(role, phase, end_secs - start_secs)
        for role in sorted({span.role for span in phase}, key=role_order)
    )
    rollouts, trains = of_kind(phase, SpanKind.ROLLOUT), of_kind(phase, SpanKind.TRAIN)
    ages = staleness(spans)
    return RunSummary(
        wall_secs=end_secs - start_secs,
        roles=roles,
        rollout_secs=sum(
            union_secs(of_kind(rollouts, SpanKind.ROLLOUT, role=role.role)) for role in roles
        ),
        train_secs=union_secs(trains),
        overlap_secs=overlap_secs(rollouts, trains),
        wait_secs=wait_secs(phase, _reason),
        rollout_tokens=sum(
            span.attributes.get("tokens", 0)
            for span in of_kind(spans, SpanKind.ROLLOUT)
            if span.end_secs <= end_secs
        ),
        trained_tokens=sum(span.attributes.get("tokens", 0) for span in trains),
        carried_over=sum(span.attributes.get("carried_over", 0) for span in rollouts),
        trainer_steps=len(trains),
        mean_staleness=sum(ages) / len(ages) if ages else None,
        max_staleness=max(ages) if ages else None,
        idle_secs=end_secs - start_secs - union_secs(of_kind(phase, *COMPUTING_KINDS)),
        evaluating_secs=sum(
            span.attributes.get("evaluating_secs", 0.0)
            for span in rollouts
            if is_explorer(span.role)
        ),
        lost=lost_time(restarts, spans, start_secs, end_secs),
        drafted_tokens=_of_engines(rollouts, _OF_ENGINES[0]),
        accepted_tokens=_of_engines(rollouts, _OF_ENGINES[1]),
    )


def _of_engines(rollouts: Iterable[Span], name: str) -> int:
    """Sums a count of the engines over rollouts; earlier records may not have it."""
    return sum(span.attributes.get("engine", {}).get(name, 0) for span in rollouts)


def describe(summary: RunSummary) -> list[str]:
    """Writes the summary as lines for a terminal."""
    lines = [
        f"RL phase {summary.wall_secs:.1f} s: rollouts {summary.rollout_secs:.1f} s, training"
        f" {summary.train_secs:.1f} s, both at once {summary.overlap_secs:.1f} s, all devices"
        f" idle {summary.idle_secs:.1f} s ({summary.idle_secs / summary.wall_secs:.0%})",
        f"throughput: {summary.rollout_tokens_per_sec:,.0f} tokens/s generated,"
        f" {summary.trained_tokens_per_sec:,.0f} tokens/s trained on",
    ]
    if summary.drafted_tokens:
        steps = summary.rollout_tokens - summary.accepted_tokens
        lines.append(
            f"drafts: {summary.accepted_tokens:,} of {summary.drafted_tokens:,} drafted tokens were"
            f" drawn, {summary.rollout_tokens / steps:.2f} tokens a decode step"
        )
    if summary.mean_staleness is not None:
        lines.append(
            f"staleness: {summary.mean_staleness:.2f} trainer steps on average,"
            f" at most {summary.max_staleness}"
        )
    if summary.evaluating_secs:
        share = summary.evaluating_secs / summary.rollout_secs
        lines.append(
            f"evaluations by explorers: rollouts stood still for {summary.evaluating_secs:.1f} s,"
            f" {share:.1%} of their time"
        )
    lines += summary.lost.describe()
    if summary.carried_over:
        lines.append(
            f"unfinished groups were carried over to the next rollout {summary.carried_over} times"
        )
    for role in summary.roles:
        if role.role == MASTER:
            lines.append(f"{MASTER}: judging {role.busy_share:.0%} of the time")
            continue
        waits = "".join(
            f"; waited {secs:.1f} s for {reason}" for reason, secs in role.wait_secs.items()
        )
        lines.append(
            f"{role.role}: {role.busy_share:.0%} busy, {role.sync_share:.0%} moving weights,"
            f" {role.idle_share:.0%} idle{waits}"
        )
    return lines


def summarize_role(role: str, phase: Iterable[Span], wall_secs: float) -> RoleSummary:
    """Summarizes the time of one role in an interval.

    Args:
      phase: spans of all roles, clipped to the interval.
      wall_secs: duration of the interval.
    """
    spans = [span for span in phase if span.role == role]
    work, syncs = of_kind(spans, *WORK_KINDS), of_kind(spans, *SYNC_KINDS)
    busy_secs = union_secs(work)
    sync_secs = union_secs(work + syncs) - busy_secs
    idle_secs = max(0.0, wall_secs - busy_secs - sync_secs)
    return RoleSummary(role, busy_secs, sync_secs, idle_secs, wait_secs(spans, _reason))


def _reason(span: Span) -> str:
    return span.attributes.get("reason", "something")


def wait_secs(spans: Iterable[Span], name: Callable[[Span], Name]) -> dict[Name, float]:
    """Sums wait seconds by a name, longest first; waits of different roles add up.

    Only time in which a role neither works nor moves weights counts.

    Args:
      name: function that names a wait.
    """
    spans = list(spans)
    totals: collections.Counter[Name] = collections.Counter()
    for role in {span.role for span in spans}:
        others = union(of_kind(spans, *WORK_KINDS, *SYNC_KINDS, role=role))
        waits: dict[Name, list[Span]] = {}
        for span in of_kind(spans, SpanKind.WAIT, role=role):
            waits.setdefault(name(span), []).extend(uncovered(span, others))
        for named, parts in waits.items():
            totals[named] += union_secs(parts)  # type: ignore[assignment]
    return {named: secs for named, secs in totals.most_common() if secs > 0}
