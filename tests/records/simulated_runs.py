"""Spans of simulated runs: a tiny simulation of each mode, with uneven but seeded durations."""

from __future__ import annotations

import functools
import random
from pathlib import Path

from rl_sync import schedule as schedules
from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.records.spans import Span, SpanKind
from rl_sync.workdir import Workdir

START_SECS = 1_700_000_000.0
GROUPS = 8
TOKENS = 4096
MODES = ("synchronous", "one_step_off_policy", "asynchronous", "multi_explorer")


def write_spans(workdir: Path, spans: list[Span]) -> None:
    """Writes spans as the roles of a run would."""
    for role in {span.role for span in spans}:
        writer = JsonLinesWriter(Workdir(workdir).spans_of(role))
        for span in spans:
            if span.role == role:
                writer.write(span.to_json())
        writer.close()


def simulate(mode: str, steps: int = 12, explorers: int | None = None, **sync: int) -> list[Span]:
    """Simulates `steps` trainer steps in a mode, after SFT and an evaluation."""
    schedule = schedules.resolve(mode, **sync)
    if schedule.pull == "exact":
        spans = _exact(schedule, steps)
    else:
        spans = _latest(schedule, steps, explorers or (3 if mode == "multi_explorer" else 1))
    spans += [
        Span("trainer", SpanKind.COMPILE, START_SECS, START_SECS + 2.5),
        Span("trainer", SpanKind.SFT, START_SECS + 2.5, START_SECS + 9.0, {"step": 100}),
        Span("trainer", SpanKind.EVALUATION, START_SECS + 9.0, START_SECS + 9.8, {"step": 0}),
    ]
    return sorted(spans, key=lambda span: span.start_secs)


def _secs(what: str, step: int, mean: float, spread: float = 0.12) -> float:
    slow_start = 2.0 if step == 1 else 1.0
    return mean * slow_start * random.Random(f"{what} {step}").uniform(1 - spread, 1 + spread)


def _leases(e: int) -> list[int]:
    return list(range((e - 1) * GROUPS, e * GROUPS))


def _explorer_step(
    role: str, e: int, version: int, start: float, rollout_secs: float
) -> tuple[list[Span], float]:
    """Returns one explorer step's spans, and the time at which its groups are in the buffer."""
    done = start + rollout_secs
    scored = done + _secs("score", e, 0.08)
    inserted = scored + 0.03
    leases = _leases(e)
    at = {"step": e, "version": version}
    return [
        Span(role, SpanKind.ROLLOUT, start, done, {**at, "tokens": TOKENS, "leases": leases}),
        Span(role, SpanKind.SCORE, done, scored, at),
        Span(role, SpanKind.INSERT, scored, inserted, {**at, "leases": leases}),
    ], inserted


def _wait(role: str, start: float, end: float, reason: str, **attributes: object) -> list[Span]:
    if end - start < 1e-6:
        return []
    return [Span(role, SpanKind.WAIT, start, end, {"reason": reason, **attributes})]


def _exact(schedule: schedules.SyncSchedule, steps: int) -> list[Span]:
    """Simulates explorer and trainer in the order of an exact schedule, with collective syncs."""
    origin = START_SECS + 10.0
    publications = {
        schedule.first_user(v): v for v in range(1, steps) if schedule.publishes_after(v)
    }

    @functools.cache
    def rollout_ready(e: int) -> float:
        """Returns the time at which explorer step e can start."""
        if e == 1:
            return origin
        return sync_end(publications[e]) if e in publications else inserted(e - 1)

    @functools.cache
    def inserted(e: int) -> float:
        return _explorer_step("explorer1", e, 0, rollout_ready(e), rollout_secs(e))[1]

    def rollout_secs(e: int) -> float:
        return _secs("rollout", e, 1.0)

    @functools.cache
    def trainer_free(t: int) -> float:
        """Returns the time at which the trainer can start step t + 1."""
        if t == 0:
            return origin
        return sync_end(t) if t in publications.values() else train_end(t)

    @functools.cache
    def train_start(t: int) -> float:
        return max(inserted(t), trainer_free(t - 1))

    def train_end(t: int) -> float:
        return train_start(t) + _secs("train", t, 0.8)

    @functools.cache
    def sync_start(v: int) -> float:
        return max(train_end(v), inserted(schedule.first_user(v) - 1))

    def sync_end(v: int) -> float:
        return sync_start(v) + _secs("sync", v, 0.12)

    spans: list[Span] = []
    for e in range(1, steps + 1):
        version = schedule.exact_version(e)
        spans += _explorer_step("explorer1", e, version, rollout_ready(e), rollout_secs(e))[0]
        if e in publications:
            spans += _wait(
                "explorer1",
                inserted(e - 1),
                sync_start(version),
                "synchronization",
                version=version,
            )
    for t in range(1, steps + 1):
        spans += _wait("trainer", trainer_free(t - 1), train_start(t), "experiences", step=t)
        attributes = {
            "step": t,
            "leases": _leases(t),
            "versions": [schedule.exact_version(t)],
            "tokens": TOKENS,
        }
        spans.append(Span("trainer", SpanKind.TRAIN, train_start(t), train_end(t), attributes))
        if t in publications.values():
            spans += _wait("trainer", train_end(t), sync_start(t), "synchronization", version=t)
            spans += [
                Span(role, SpanKind.SYNC_COLLECTIVE, sync_start(t), sync_end(t), {"version": t})
                for role in ("trainer", "explorer1")
            ]
    return spans


def _latest(schedule: schedules.SyncSchedule, steps: int, explorers: int) -> list[Span]:
    """Simulates explorers that use the newest weights they find, with checkpoint syncs."""
    origin = START_SECS + 10.0
    spans: list[Span] = []
    clocks = {f"explorer{n}": origin + 0.2 * (n - 1) for n in range(1, explorers + 1)}
    held = dict.fromkeys(clocks, 0)
    pace = {f"explorer{n}": explorers * (0.85 + 0.2 * (n - 1)) for n in range(1, explorers + 1)}
    published = [(origin, 0)]
    waiting: list[tuple[float, int, int]] = []
    trainer_secs, t, e = origin, 1, 1
    while t <= steps:
        role = min(clocks, key=lambda name: clocks[name])
        ready = sorted(waiting)[0][0] if waiting else float("inf")
        if max(ready, trainer_secs) <= clocks[role] or not schedule.may_start(e, published[-1][1]):
            inserted, batch, version = min(waiting)
            waiting.remove((inserted, batch, version))
            start = max(inserted, trainer_secs)
            spans += _wait("trainer", trainer_secs, start, "experiences", step=t)
            end = start + _secs("train", t, 0.8)
            leases = _leases(batch)
            attributes = {"step": t, "leases": leases, "versions": [version], "tokens": TOKENS}
            spans.append(Span("trainer", SpanKind.TRAIN, start, end, attributes))
            trainer_secs = end
            if schedule.publishes_after(t):
                trainer_secs = end + 0.06
                about = {"version": t, "direction": "publish"}
                spans.append(Span("trainer", SpanKind.SYNC_CHECKPOINT, end, trainer_secs, about))
                published.append((trainer_secs + 0.15, t))
            t += 1
            continue
        found = [v for secs, v in published if secs <= clocks[role]]
        if not schedule.may_start(e, found[-1]):
            start = next(secs for secs, v in published if schedule.may_start(e, v))
            spans += _wait(role, clocks[role], start, "staleness bound", step=e)
            clocks[role] = start
            continue
        if found[-1] > held[role]:
            held[role] = found[-1]
            end = clocks[role] + 0.1
            about = {"version": found[-1], "direction": "pull"}
            spans.append(Span(role, SpanKind.SYNC_CHECKPOINT, clocks[role], end, about))
            clocks[role] = end
        secs = _secs("rollout", e, 0.75 * pace[role])
        done, clocks[role] = _explorer_step(role, e, held[role], clocks[role], secs)
        spans += done
        waiting.append((clocks[role], e, held[role]))
        e += 1
    return spans
