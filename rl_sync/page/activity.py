"""Summarises the roles at the end of a run's records: shares of their time, policy versions."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.records.run_records import LIVE, RunRecords
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import clipped, summarize_role, wait_secs
from rl_sync.records.usage import Doing
from rl_sync.role_names import TRAINER, role_of, role_order

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
      last: description of the span that ended last; empty if none has.
      last_secs: end of this span, in Unix seconds.
      now: the activity that began since, if it has lasted for seconds; None for none.
      busy, sync: shares of the recent time spent on work, and on moving weights.
      waits: recent waits, longest first.
      version: the policy version that it has last published or pulled; None if there is none.
    """

    name: str
    last: str
    last_secs: float
    now: Doing | None
    busy: float
    sync: float
    waits: tuple[Wait, ...]
    version: int | None


def roles_of(run: RunRecords) -> list[str]:
    """Lists the roles that have recorded something: explorers, the trainer, then others."""
    spans = {role for role, spans in run.spans.by_role.items() if spans}
    return sorted(spans | open_activities(run).keys(), key=role_order)


def open_activities(run: RunRecords) -> dict[str, Doing]:
    """Returns what roles of a live run are doing for more than a second, by its last word.

    A role says so every few seconds, and records a span when it ends.
    """
    if run.state != LIVE:
        return {}
    found: dict[str, Doing] = {}
    for process, doing in run.usage.doing.items():
        spans = run.spans.by_role.get(role := role_of(process), [])
        since = bisect.bisect_left(spans, doing.at_secs, key=lambda span: span.end_secs)
        has_ended = any(abs(s.start_secs - doing.since_secs) < 1e-3 for s in spans[since:])
        is_brief = doing.at_secs - doing.since_secs < 1.0 and spans
        if process == role and not has_ended and not is_brief:
            found[role] = doing
    return found


def open_spans(run: RunRecords) -> list[Span]:
    """Returns these activities as spans that have lasted until the role's last word."""
    return [
        Span(role, SpanKind(of.kind), of.since_secs, of.at_secs, of.attributes)
        for role, of in open_activities(run).items()
        if of.kind in {*SpanKind}
    ]


def roles_now(run: RunRecords) -> list[RoleNow]:
    """Describes each role at the end of the records."""
    start, end = run.period
    start, doing = max(start, end - RECENT_SECS), open_activities(run)
    return [_role_now(run, role, start, end, doing.get(role)) for role in roles_of(run)]


def _role_now(run: RunRecords, role: str, start: float, end: float, doing: Doing | None) -> RoleNow:
    spans, wall_secs = run.spans.by_role.get(role, []), max(end - start, 1e-9)
    # Spans are ordered by their ends.
    first = bisect.bisect_right(spans, start, key=lambda span: span.end_secs)
    recent = clipped(spans[first:], start, end)
    found = summarize_role(role, recent, wall_secs)
    waits = wait_secs(recent, _named)
    versions = versions_of(run, role)
    return RoleNow(
        role,
        _words(spans[-1]) if spans else "",
        spans[-1].end_secs if spans else 0.0,
        doing,
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
