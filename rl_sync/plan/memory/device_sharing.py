"""Memory of devices that roles share, and what they leave there for explorers' caches."""

from __future__ import annotations

import dataclasses

from rl_sync.models.paging.paged_cache import page_bytes
from rl_sync.models.platform import Platform, compiling_for
from rl_sync.plan.memory.explorer_memory import CACHE, explorer_estimate
from rl_sync.plan.memory.memory_estimate import MemoryEstimate
from rl_sync.plan.memory.trainer_memory import EVALUATION, step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task

_TRUSTED = 0.95
"""Part of the room that estimates may fill; the rest is for what they leave out."""


def shared_peak(
    settings: RunSettings, trainer: MemoryEstimate, explorer: MemoryEstimate, *, step_peak: int = 0
) -> int:
    """Returns the maximum bytes of a device that the trainer and all explorers share.

    Where they take turns, a rollout finds no step beside it, and a step finds explorers at rest:
    without the caches of their rollouts, and without work, unless they evaluate meanwhile.

    Args:
      settings: settings of the run.
      trainer: estimate of the trainer's step.
      explorer: estimate of each explorer.
      step_peak: bytes of the step at its maximum, if they are known better.
    """
    count, step = settings.explorers, step_peak or trainer.peak
    if not settings.takes_turns:
        return step + count * explorer.peak
    resting = explorer.peak - explorer.made.get(CACHE, 0)
    if not settings.explorers_evaluate_every:
        resting -= explorer.temporary
    between = sum(trainer.held.values())
    if EVALUATION in trainer.work:  # Explorers go on with what is evaluated.
        between += trainer.work[EVALUATION] + sum(trainer.made.values())
    return max(step + count * resting, between + count * explorer.peak)


def with_cache(
    settings: RunSettings, task: Task, platform: Platform, room: int, *, shared: bool
) -> RunSettings:
    """Returns settings whose `rollout.cache_bytes` is what else a device leaves, by estimates.

    It holds at least the longest sequence, and at most all slots.

    Args:
      settings: settings with `rollout.cache_bytes=0`.
      task: its task.
      platform: platform of the explorers' devices.
      room: bytes of a device that a run may use.
      shared: whether all roles share one device; else explorers have devices of their own.
    """
    with compiling_for(platform):
        model, layout = wiring.explorer_model(settings, task), settings.explorer_layout
        page = page_bytes(model, layout)
        pages = wiring.cache_pages(_with(settings, 1 << 62), task)
    assert pages is not None
    trainer = step_estimate(settings, task, platform) if shared else None

    def fits(count: int) -> bool:
        chosen = _with(settings, count * page)
        explorer = explorer_estimate(chosen, task, platform)
        peak = explorer.peak if trainer is None else shared_peak(chosen, trainer, explorer)
        return peak <= _TRUSTED * room

    least, most = pages.width, pages.pages
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return _with(settings, least * page)


def _with(settings: RunSettings, size: int) -> RunSettings:
    return dataclasses.replace(
        settings, rollout=dataclasses.replace(settings.rollout, cache_bytes=size)
    )
