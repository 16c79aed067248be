"""Forecasts a mode's pace from the recorded times of a run in any mode."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from rl_sync.plan.compile_text import format_secs
from rl_sync.plan.forecast import Durations, forecast
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import of_kind, rl_phase, union_secs
from rl_sync.role_names import TRAINER, is_explorer
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings

_LEAST_STEPS = 4


def describe_predicted(settings: RunSettings, workdir: str) -> str:
    """Describes the duration of a step in the config's mode, with the times of a run.

    Raises:
      ConfigError: the work directory does not have a run of enough steps.
    """
    try:
        spans = read_spans(Path(workdir))
    except FileNotFoundError:
        spans = []
    trained = of_kind(spans, SpanKind.TRAIN, role=TRAINER)
    if len(trained) < _LEAST_STEPS:
        raise ConfigError(
            f"{workdir} has {len(trained)} trainer steps on record; a forecast needs at least"
            f" {_LEAST_STEPS}."
        )
    found = forecast(
        settings.schedule,
        settings.explorers,
        settings.meets,
        durations_of(spans, settings),
        steps=len(trained),
    )
    half = len(trained) // 2
    took = (trained[-1].end_secs - trained[half - 1].end_secs) / (len(trained) - half)
    return (
        f"With the times of {workdir}, where a trainer step took {format_secs(took)} with its"
        f" waits:\n  {settings.sync.mode}: a trainer step every {format_secs(found.step_secs)}"
        f" (explorer {found.busy(1):.0%} busy, trainer {found.busy(0):.0%} busy)"
    )


def durations_of(spans: Sequence[Span], settings: RunSettings) -> Durations:
    """Returns the durations of a run, for forecasts with these settings.

    The time of a rollout is assumed to be proportional to its share of a batch: with twice as many
    explorers, each takes half as long.
    """
    begin, end = rl_phase(spans)
    phase = [one for one in spans if begin <= one.start_secs and one.end_secs <= end]
    trained = [one.duration_secs for one in of_kind(phase, SpanKind.TRAIN, role=TRAINER)]
    alone = settings.schedule.pull == "latest"
    share = 1 if alone else 1 / settings.explorers
    batches = [secs * share for secs in _batches(phase, len(trained))]
    saved = union_secs(of_kind(phase, SpanKind.SNAPSHOT, role=TRAINER)) / len(trained)
    syncs = [one.duration_secs for one in phase if one.kind in SYNC_KINDS and is_explorer(one.role)]

    def rollout(e: int, explorer: int) -> float:
        number = e - 1 if alone else (e - 1) * settings.explorers + explorer - 1
        return batches[number % len(batches)]

    return Durations(
        rollout=rollout,
        train=lambda t: trained[(t - 1) % len(trained)] + saved,
        sync=statistics.median(syncs) if syncs else 0.0,
    )


def _batches(phase: Sequence[Span], steps: int) -> list[float]:
    """Returns, for each rollout, the time in which its explorer would generate a whole batch.

    The time includes scoring and insertion that no rollout overlapped.
    """
    rollouts = [one for one in of_kind(phase, SpanKind.ROLLOUT) if is_explorer(one.role)]
    beside = 0.0
    for name in {one.role for one in rollouts}:
        own = of_kind(phase, SpanKind.ROLLOUT, role=name)
        more = of_kind(phase, SpanKind.SCORE, SpanKind.INSERT, role=name)
        beside += union_secs([*own, *more]) - union_secs(own)
    groups = [len(one.attributes.get("leases", ())) or 1 for one in rollouts]
    of_batch = sum(groups) / steps
    return [
        (one.duration_secs + beside / len(rollouts)) * of_batch / count
        for one, count in zip(rollouts, groups, strict=True)
    ]
