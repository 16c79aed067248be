"""Summarises the roles at the end of a run's records: shares of their time, policy versions."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.records.run_records import RunRecords
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import clipped, summarize_role, wait_secs
from rl_sync.role_names import TRAINER, role_order

RECENT_SECS = 60.0
"""Seconds at the end of the records over which shares of time are computed."""


class Wait(NamedTuple):
    """A wait of a role: its reason, the role it waits for, and its share of the time."""

    reason: str
    for_whom: str
    share: float


class RoleNow(NamedTuple):
    """State of a role when its records end.

    Attributes:
      last: description of the span that ended last.
      last_secs: end of this span, in Unix seconds.
      busy, sync: shares of the recent time spent on work, and on moving weights.
      waits: recent waits, longest first.
      version: the policy version that it has last published or pulled; None if there is none.
    """

    name: str
    last: str
    last_secs: float
    busy: float
    sync: float
    waits: tuple[Wait, ...]
    version: int | None


def roles_of(run: RunRecords) -> list[str]:
    """Lists the roles that have recorded something: explorers, the trainer, then others."""
    return sorted((role for role, spans in run.spans.by_role.items() if spans), key=role_order)


def roles_now(run: RunRecords) -> list[RoleNow]:
    """Describes each role at the end of the records."""
    start, end = run.period
    start = max(start, end - RECENT_SECS)
    return [_role_now(run, role, start, end) for role in roles_of(run)]


def _role_now(run: RunRecords, role: str, start: float, end: float) -> RoleNow:
    spans, wall_secs = run.spans.by_role[role], max(end - start, 1e-9)
    # Spans are ordered by their ends.
    first = bisect.bisect_right(spans, start, key=lambda span: span.end_secs)
    recent = clipped(spans[first:], start, end)
    found = summarize_role(role, recent, wall_secs)
    waits = wait_secs(recent, _named)
    versions = versions_of(run, role)
    return RoleNow(
        role,
        _words(spans[-1]),
        spans[-1].end_secs,
        busy=found.busy_secs / wall_secs,
        sync=found.sync_secs / wall_secs,
        waits=tuple(Wait(*named, secs / wall_secs) for named, secs in waits.items()),
        version=versions[-1][1] if versions else None,
    )


def versions_of(run: RunRecords, role: str) -> list[tuple[float, int]]:
    """Lists the versions that a role published or pulled, each after its time in Unix seconds."""
    return [
        (span.end_secs, span.version)
        for span in run.spans.by_role.get(role, ())
        if span.kind in SYNC_KINDS and span.version is not None and "error" not in span.attributes
    ]


def newest_version(run: RunRecords) -> int | None:
    """Returns the version that the trainer published last; None if there is none."""
    published = versions_of(run, TRAINER)
    return published[-1][1] if published else None


def _named(wait: Span) -> tuple[str, str]:
    return wait.attributes.get("reason", "something"), wait.attributes.get("for_whom", "")


def _words(span: Span) -> str:
    """Names a span: "rollout e7 · v6", "train t5", "wait for experiences"."""
    words, step, version = SPAN_STYLES[span.kind].words, span.step, span.version
    if span.kind is SpanKind.WAIT:
        return f"wait for {_named(span)[0]}"
    parts = []
    if span.kind in (SpanKind.ROLLOUT, SpanKind.TRAIN) and step is not None:
        parts.append(f"{'e' if span.kind is SpanKind.ROLLOUT else 't'}{step}")
    if span.kind in (SpanKind.ROLLOUT, *SYNC_KINDS) and version is not None:
        parts.append(f"v{version}")
    return f"{words} {' · '.join(parts)}".strip()
