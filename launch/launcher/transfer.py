"""Collective transfer of a run: its programs and turns, planned from shapes."""

from __future__ import annotations

from rl_sync.launcher.memory import format_bytes
from rl_sync.runtime import wiring
from rl_sync.runtime.parameters import Parameters
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.weights import link
from rl_sync.weights.routes import SHARES


def describe_transfer(settings: RunSettings, task: Task) -> list[str]:
    """Describes the collective transfer to an explorer; nothing for other ways of the weights."""
    joint = settings.transfer == "collective" and not settings.launch.colocate
    if not settings.explorers or not joint:
        return []
    model = wiring.model_config(settings, task)
    there, here = (
        Parameters(model, None, 0, layout, settings.explorer_dtype).travelling_like()
        for layout in (settings.trainer_layout, settings.explorer_layout)
    )
    plan = link.plan(there, here)
    programs, turns = plan.programs, plan.exchanges
    return [
        f"  transfer   {programs} program{'s' * (programs != 1)} move{'s' * (programs == 1)} the"
        f" weights to an explorer, in {turns} turn{'s' * (turns != 1)}; besides the weights a"
        f" device holds at most {format_bytes(SHARES * plan.nbytes)}"
    ]
