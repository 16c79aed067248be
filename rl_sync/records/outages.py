"""Outages: the time that a run loses when roles die, and the share of its time that counts.

The effective training time ratio (ETTR) is the share of wall time that led to steps that count
(ByteRobust, Robust LLM Training Infrastructure at ByteDance, 2025).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rl_sync.records.spans import Span, SpanKind
from rl_sync.role_names import TOGETHER, TRAINER, is_explorer

_WORK = {SpanKind.TRAIN, SpanKind.ROLLOUT}


class Restart(NamedTuple):
    """A role that died, and was started again.

    Attributes:
      role: the role.
      at_secs: time when its death was noticed, in Unix seconds.
    """

    role: str
    at_secs: float


class Outage(NamedTuple):
    """The time from the death of a role until it did its work again.

    Steps that the trainer does a second time belong to it.

    Attributes:
      role: the role.
      start_secs, end_secs: Unix seconds.
      share: share of the run that stood still: 1, or for an explorer 1 / number of explorers.
    """

    role: str
    start_secs: float
    end_secs: float
    share: float

    @property
    def lost_secs(self) -> float:
        return (self.end_secs - self.start_secs) * self.share


class LostTime(NamedTuple):
    """The time that a run lost when roles died.

    Attributes:
      outages: the outages, in the order of the restarts.
      effective_share: share of the time that led to steps that count (ETTR).
    """

    outages: tuple[Outage, ...] = ()
    effective_share: float = 1.0

    @property
    def lost_secs(self) -> float:
        """Sum over the outages; time that several lose counts several times."""
        return sum(one.lost_secs for one in self.outages)

    @property
    def secs_per_failure(self) -> float | None:
        """Mean over the outages; None without any."""
        return self.lost_secs / len(self.outages) if self.outages else None

    def metrics(self) -> dict[str, float]:
        """Returns the numbers as metrics of a trainer step; see the catalog of metrics."""
        each = self.secs_per_failure
        return {
            "run/effective_share": self.effective_share,
            "run/failures": float(len(self.outages)),
            **({} if each is None else {"run/secs_per_failure": each}),
        }

    def describe(self) -> list[str]:
        """Writes the outages as a line for a terminal; none if there are none."""
        if not self.outages:
            return []
        each = ", ".join(f"{one.role} {one.lost_secs:.1f} s" for one in self.outages)
        share = f"{self.effective_share:.1%}"
        return [f"effective: {share} of the time led to steps that count; lost: {each}"]


def lost_time(
    restarts: Iterable[Restart], spans: Sequence[Span], start_secs: float, end_secs: float
) -> LostTime:
    """Returns the time that deaths cost a run in an interval, in Unix seconds like the spans."""
    found = [
        one._replace(start_secs=max(one.start_secs, start_secs))
        for one in outages(restarts, spans, end_secs)
        if one.end_secs > start_secs
    ]
    return LostTime(tuple(found), effective_share(found, start_secs, end_secs))


def outages(restarts: Iterable[Restart], spans: Sequence[Span], end_secs: float) -> list[Outage]:
    """Returns the outages of a run, in the order of the restarts.

    An outage of the trainer ends with its first step that counts anew, an outage of an explorer
    with its first rollout, an outage of a server with the first of either. Without one it lasts to
    the end of the run.

    Args:
      end_secs: end of the run.
    """
    explorers = {span.role for span in spans if is_explorer(span.role)}
    found = []
    for role, at_secs in restarts:
        back = (
            span.start_secs
            for span in spans
            if span.start_secs > at_secs and span.kind in _WORK and _does_work_of(span, role)
        )
        share = 1 / max(1, len(explorers)) if is_explorer(role) else 1.0
        found.append(Outage(role, at_secs, min(min(back, default=end_secs), end_secs), share))
    return [one for one in found if one.end_secs > one.start_secs]


def effective_share(found: Sequence[Outage], start_secs: float, end_secs: float) -> float:
    """Returns the share of an interval in which no outage held the run up (ETTR).

    Time in which several roles were out counts once, with the largest share.
    """
    edges = {start_secs, end_secs}
    for one in found:
        edges |= {min(max(edge, start_secs), end_secs) for edge in (one.start_secs, one.end_secs)}
    times = sorted(edges)
    lost = 0.0
    for left, right in itertools.pairwise(times):
        shares = [one.share for one in found if one.start_secs <= left and right <= one.end_secs]
        lost += (right - left) * max(shares, default=0.0)
    return 1 - lost / (end_secs - start_secs)


def _does_work_of(span: Span, role: str) -> bool:
    if role in (TRAINER, TOGETHER):
        return span.kind is SpanKind.TRAIN
    return span.role == role if is_explorer(role) else True
