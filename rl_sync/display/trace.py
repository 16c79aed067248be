"""Writes a trace of the spans, for Perfetto (ui.perfetto.dev) and chrome://tracing.

Every role is a process with one lane, or with more if its threads overlap. The buffer is a process
too, with a short slice for each arrival and each departure of groups, and a counter of the groups
in it. Arrows follow the groups from the explorer through the buffer to the trainer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.records import buffer_level
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import Span, SpanKind
from rl_sync.role_names import is_explorer, role_order
from rl_sync.workdir import Workdir

_BUFFER, _ARRIVALS, _DEPARTURES = "buffer", 0, 1
_SLICE_SECS = 0.001

Event = dict[str, Any]
Track = tuple[int, int]
"""A lane of the viewer: process id and thread id."""


def write_trace(
    workdir: str | os.PathLike[str], path: str | os.PathLike[str] | None = None
) -> Path:
    """Writes the trace of a run, by default to `workdir/trace.json`, and returns its path.

    Raises:
      FileNotFoundError, ValueError: see `read_spans`.
    """
    target = Path(path) if path is not None else Workdir(workdir).trace
    trace = {"traceEvents": trace_events(read_spans(workdir)), "displayTimeUnit": "ms"}
    temporary = target.with_name(target.name + ".tmp")
    temporary.write_text(json.dumps(trace))
    temporary.replace(target)
    return target


def trace_events(spans: Iterable[Span]) -> list[Event]:
    """Builds the events of the trace; times are microseconds since the first span began."""
    spans = sorted(spans, key=lambda span: span.start_secs)
    if not spans:
        return []
    origin_secs = spans[0].start_secs
    roles = sorted({span.role for span in spans}, key=role_order)
    # The buffer's lane is below the explorers, where its groups pass.
    lanes = sorted([*roles, _BUFFER], key=lambda role: (_lane_rank(role), role_order(role)))
    pids = {role: pid for pid, role in enumerate(lanes, start=1)}
    events = [event for role in lanes for event in _name_process(role, pids[role])]
    tracks: dict[Span, Track] = {}
    for role in roles:
        own = [span for span in spans if span.role == role]
        tids = _threads(own)
        for tid in sorted(set(tids)):
            events.append(
                _name_thread(role if tid == 0 else f"{role} ({tid + 1})", pids[role], tid)
            )
        for span, tid in zip(own, tids, strict=True):
            tracks[span] = (pids[role], tid)
            events.append(_slice(span, tracks[span], origin_secs))
    events += _buffer_events(spans, pids[_BUFFER], origin_secs)
    events += _arrows(spans, tracks, pids[_BUFFER], origin_secs)
    return events


def _lane_rank(role: str) -> int:
    if role == _BUFFER:
        return 1
    return 0 if is_explorer(role) else 2


def _name_process(role: str, pid: int) -> list[Event]:
    about = {"ph": "M", "pid": pid, "tid": 0}
    return [
        {**about, "name": "process_name", "args": {"name": role}},
        {**about, "name": "process_sort_index", "args": {"sort_index": pid}},
    ]


def _name_thread(name: str, pid: int, tid: int) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _threads(spans: list[Span]) -> list[int]:
    """Assigns each span to the first lane in which it overlaps no span partially.

    The format requires that spans of a lane either nest or do not overlap.

    Args:
      spans: the spans of one role, ordered by start.
    """
    order = sorted(range(len(spans)), key=lambda i: (spans[i].start_secs, -spans[i].end_secs))
    open_ends: list[list[float]] = []
    lanes = [0] * len(spans)
    for index in order:
        span = spans[index]
        for lane, ends in enumerate([*open_ends, None]):
            if ends is None:
                open_ends.append([span.end_secs])
            else:
                while ends and ends[-1] <= span.start_secs:
                    ends.pop()
                if ends and ends[-1] < span.end_secs:
                    continue
                ends.append(span.end_secs)
            lanes[index] = lane
            break
    return lanes


def _slice(span: Span, track: Track, origin_secs: float) -> Event:
    event = {
        "ph": "X",
        "name": _title(span),
        "cat": str(span.kind),
        "pid": track[0],
        "tid": track[1],
        "ts": _micros(span.start_secs, origin_secs),
        "dur": _micros(span.end_secs, span.start_secs),
        "args": span.attributes,
    }
    if (colour := SPAN_STYLES[span.kind].trace_colour) is not None:
        event["cname"] = colour
    return event


def _title(span: Span) -> str:
    if span.kind is SpanKind.WAIT:
        return f"wait for {span.attributes.get('reason', 'something')}"
    parts = [str(span.kind).replace("_", " ")]
    parts += [str(span.step)] if span.step is not None else []
    parts += [f"v{span.version}"] if span.version is not None else []
    return " ".join(parts)


def _buffer_events(spans: list[Span], pid: int, origin_secs: float) -> list[Event]:
    """Builds the events of the buffer's lanes: arrivals, departures, and the counter."""
    arrivals = [
        (secs, f"groups of {insert.role}", tuple(leases))
        for (secs, insert), leases in _arrivals(spans).items()
    ]
    departures = [
        (span.start_secs, "batch" if span.step is None else f"batch {span.step}", span.leases)
        for span in spans
        if span.kind is SpanKind.TRAIN and span.leases
    ]
    events = [
        _name_thread("arrivals", pid, _ARRIVALS),
        _name_thread("departures", pid, _DEPARTURES),
    ]
    events += _moments(arrivals, (pid, _ARRIVALS), origin_secs)
    events += _moments(departures, (pid, _DEPARTURES), origin_secs)
    for level in buffer_level.fill_level(spans):
        event: Event = {"ph": "C", "name": "groups in the buffer", "pid": pid, "tid": 0}
        event |= {"ts": _micros(level.secs, origin_secs), "args": {"groups": level.groups}}
        events.append(event)
    return events


def _arrivals(spans: list[Span]) -> dict[buffer_level.Arrival, list[int]]:
    """Collects the leases of the groups that entered the buffer at the same time, by one insert."""
    found: dict[buffer_level.Arrival, list[int]] = {}
    for lease, arrival in buffer_level.arrivals(spans).items():
        found.setdefault(arrival, []).append(lease)
    return found


def _moments(
    moments: list[tuple[float, str, tuple[int, ...]]], track: Track, origin_secs: float
) -> list[Event]:
    """Builds a short slice for each moment, which ends before the next: slices must not overlap."""
    moments = sorted(set(moments))
    ends = [secs for secs, *_ in moments[1:]] + [float("inf")]
    return [
        {
            "ph": "X",
            "name": name,
            "cat": "buffer",
            "pid": track[0],
            "tid": track[1],
            "ts": _micros(secs, origin_secs),
            "dur": _micros(min(_SLICE_SECS, end - secs), 0.0),
            "args": {"groups": len(leases), "leases": list(leases)},
        }
        for (secs, name, leases), end in zip(moments, ends, strict=False)
    ]


def _arrows(
    spans: list[Span], tracks: dict[Span, Track], buffer_pid: int, origin_secs: float
) -> list[Event]:
    """Builds an arrow from each insert, through the buffer, to each train step that it fed.

    A point of an arrow belongs to the slice of its lane that is open at the point's time.
    """
    arrivals = buffer_level.arrivals(spans)
    events, number = [], 0
    for train in (span for span in spans if span.kind is SpanKind.TRAIN):
        fed: dict[buffer_level.Arrival, list[int]] = {}
        for lease in train.leases:
            if lease in arrivals:
                fed.setdefault(arrivals[lease], []).append(lease)
        for (secs, insert), leases in fed.items():
            number += 1
            points = [
                ("s", tracks[insert], min((insert.start_secs + insert.end_secs) / 2, secs)),
                ("t", (buffer_pid, _ARRIVALS), secs),
                ("t", (buffer_pid, _DEPARTURES), train.start_secs),
                ("f", tracks[train], train.start_secs + min(1e-6, train.duration_secs)),
            ]
            for phase, (pid, tid), at in points:
                event: Event = {"ph": phase, "name": "groups", "cat": "groups", "id": number}
                event |= {"pid": pid, "tid": tid, "ts": _micros(at, origin_secs)}
                event |= {"args": {"leases": leases}} | ({"bp": "e"} if phase == "f" else {})
                events.append(event)
    return events


def _micros(secs: float, origin_secs: float) -> float:
    return round((secs - origin_secs) * 1e6, 1)
