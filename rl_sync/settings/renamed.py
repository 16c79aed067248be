"""Lists earlier names of settings, each with the name that took its place."""

from __future__ import annotations

RENAMED = {
    "warm_up": "sft",
    "optimizer.warm_up_learning_rate": "sft.learning_rate",
    "optimizer.warm_up_schedule": "sft.schedule",
    "optimizer.ramp_updates": "optimizer.warmup_updates",
    "critic.warm_up_steps": "critic.warmup_steps",
    "algorithm.need_spread": "algorithm.filter_zero_variance",
    "algorithm.expert_rows": "algorithm.demonstration_rows",
    "algorithm.expert_coefficient": "algorithm.demonstration_coefficient",
    "launch.explorer_restarts": "launch.restarts",
    "environment.aside_bytes": "environment.kv_offload_bytes",
}
"""Present names by earlier name, for settings and sections."""


def new_name(name: str) -> str | None:
    """Returns the present name of an earlier setting or section; None if there is none.

    Args:
      name: earlier name, such as `warm_up.steps`.
    """
    for old, new in RENAMED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None
