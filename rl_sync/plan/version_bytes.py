"""The bytes that travel to an explorer for each version."""

from __future__ import annotations

from rl_sync.plan.memory.model_memory import tree_bytes
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.settings.run_settings import RunSettings
from rl_sync.weights.deltas.changed_share import expected_share

_ENCODED = 1.3
"""Bytes of encoded changes over the bytes of the changed values."""


def travelling_bytes(settings: RunSettings) -> float:
    """Estimates the bytes of a version on its way: all published values, or what changed."""
    task = wiring.load_task(settings)
    whole = tree_bytes(parameters_of(settings, task, settings.explorer_layout).abstract_published())
    if not settings.deltas:
        return float(whole)
    share = expected_share(settings.optimizer.learning_rate, settings.explorer_dtype)
    return whole * min(1.0, _ENCODED * share)
