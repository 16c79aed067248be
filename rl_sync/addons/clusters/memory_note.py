"""Estimated memory of each role, for the head of a rendered file."""

from __future__ import annotations

from rl_sync.models.platform import Platform
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_text import format_bytes
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings


def memory_note(settings: RunSettings, platform: Platform) -> str:
    """Describes the memory that each role needs, as `plan` computes it; one sentence.

    A login node may lack the checkpoint or the data. Then the sentence says why there is no
    estimate.
    """
    try:
        task = wiring.load_task(settings)
        peaks = {"trainer": step_estimate(settings, task, platform).peak}
        if settings.explorers:
            peaks["an explorer"] = explorer_estimate(settings, task, platform).peak
    except (ConfigError, OSError) as error:
        return f"Memory was not estimated: {str(error).splitlines()[0]}"
    each = "process" if platform == "cpu" else "device"
    needed = ", ".join(f"{role} {format_bytes(size)}" for role, size in peaks.items())
    return f"Memory by `plan`, for each {each}: {needed}."
