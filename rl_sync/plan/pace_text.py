"""Predicts a mode's pace from the recorded times of a run in any mode."""

from __future__ import annotations

import os

from rl_sync.plan.compile_text import format_secs
from rl_sync.plan.version_bytes import travelling_bytes
from rl_sync.records.span_reader import read_spans
from rl_sync.settings.run_settings import RunSettings
from rl_sync.simulation.speed.measured_work import read_work
from rl_sync.simulation.speed.network_link import NetworkLink
from rl_sync.simulation.speed.prediction import predict, step_secs
from rl_sync.simulation.speed.speed_plan import plan_of

_STEPS, _SEEDS = 48, range(2)


def describe_predicted(
    settings: RunSettings,
    workdir: str,
    measured: RunSettings,
    link: NetworkLink | None = None,
) -> str:
    """Describes the duration of a step in the config's mode, with the times of a run.

    Args:
      settings: settings of the run to predict.
      workdir: work directory of the run whose times count.
      measured: settings of that run.
      link: network between the trainer's machine and the explorers; None for that of the run.

    Raises:
      ConfigError: the work directory does not have a run of enough steps, or the simulation does
        not know a setting.
    """
    found = read_work(workdir, measured, None if measured.launch.elsewhere else os.cpu_count())
    work = found.work.on_devices(1.0, 1.0, apart=bool(settings.launch.elsewhere))
    over = ""
    if link is not None:
        work = link.carrying(work, travelling_bytes(settings))
        over = f", over {link}"
    took = step_secs(read_spans(workdir))
    plan = plan_of(settings, steps=_STEPS, in_parts=found.in_parts)
    figures = predict(plan, work, _SEEDS)
    return (
        f"With the times of {workdir}, where a trainer step took {format_secs(took)} with its"
        f" waits{over}:\n  {settings.sync.mode}: a trainer step every"
        f" {format_secs(3600 / figures.steps_an_hour)} (explorer"
        f" {1 - figures.explorer_idle:.0%} busy, trainer {1 - figures.trainer_idle:.0%} busy;"
        f" staleness {figures.mean_staleness:.1f} on average)"
    )
