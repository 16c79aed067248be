"""Counts the programs that a run will compile, before it starts."""

from __future__ import annotations

import collections
from collections.abc import Callable

from rl_sync.models.platform import Platform, compiling_for
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import parameters_of, trainer_of
from rl_sync.roles.assembly.engines import rollout_engine
from rl_sync.roles.assembly.program_list import TRAINING, explorer_programs, trainer_programs
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task

Counts = dict[str, int]
"""Numbers of programs, by their purpose."""


def describe_programs(settings: RunSettings, task: Task) -> str:
    """Describes the maximum number of programs of each role, with one line for each."""
    roles = {"trainer": _trainer} | ({"explorer": _explorer} if settings.explorers else {})
    lines = [
        f"  {role:<10} " + ", ".join(_on(settings, task, count, platform) for platform in _NAMES)
        for role, count in roles.items()
    ]
    return "\n".join(["Programs that compute with the model, at most:", *lines])


_NAMES: dict[Platform, str] = {"cpu": "CPUs", "tpu": "accelerators"}


def _on(
    settings: RunSettings,
    task: Task,
    count: Callable[[RunSettings, Task], Counts],
    platform: Platform,
) -> str:
    with compiling_for(platform):
        found = count(settings, task)
    parts = ", ".join(f"{purpose} {number}" for purpose, number in found.items())
    return f"{sum(found.values())} on {_NAMES[platform]} ({parts})"


def _trainer(settings: RunSettings, task: Task) -> Counts:
    trainer = trainer_of(settings, task, settings.trainer_layout)
    programs = trainer_programs(settings, task, trainer)
    found = collections.Counter(program.purpose for program in programs)
    # Steps on rows with shared prompts have too many shapes to list.
    return {**found, TRAINING: wiring.batching_of(settings, task).shape_count}


def _explorer(settings: RunSettings, task: Task) -> Counts:
    layout = settings.explorer_layout
    engine = rollout_engine(settings, task, layout)
    programs = explorer_programs(settings, task, engine, parameters_of(settings, task, layout))
    return dict(collections.Counter(program.name for program in programs))
