"""Collective transfer of a run: its programs and turns, planned from shapes."""

from __future__ import annotations

from rl_sync.launcher.memory import format_bytes
from rl_sync.runtime.programs import parameters_of
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.weights import link


def describe_transfer(settings: RunSettings, task: Task) -> list[str]:
    """Describes the collective transfer to an explorer; nothing for other ways of the weights."""
    joint = settings.transfer == "collective" and not settings.launch.colocate
    if not settings.explorers or not joint:
        return []
    there, here = (
        parameters_of(settings, task, layout).travelling_like()
        for layout in (settings.trainer_layout, settings.explorer_layout)
    )
    plan = link.plan(there, here)
    programs, turns = len(plan.formats), plan.turns
    most = 2 * max((form.nbytes for form in plan.formats), default=0)
    return [
        f"  transfer   {programs} program{'s' * (programs != 1)} move{'s' * (programs == 1)} the"
        f" weights to an explorer, in {turns} turn{'s' * (turns != 1)}; besides the weights a"
        f" device holds at most {format_bytes(most)}"
    ]
