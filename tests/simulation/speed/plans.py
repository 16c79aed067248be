"""Plans and workloads of simulated runs, with constant or varying times."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from rl_sync.configs import base
from rl_sync.schedule import MODES
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.simulation.speed.speed_plan import SpeedPlan, plan_of
from rl_sync.simulation.speed.workload import Decoding, Samples, TransferTimes, Workload
from rl_sync.transfer import TRANSFERS

GROUPS = 4


@functools.cache
def _base() -> RunSettings:
    return read_settings({**base.get_config().to_dict(), "workdir": "simulated"})


def plan_with(
    mode: str = "synchronous",
    *,
    explorers: int = 1,
    steps: int = 24,
    groups: int = GROUPS,
    groups_per_lease: int | None = None,
    rows: int = 1,
    transfer: str | None = None,
    sync: dict[str, Any] | None = None,
    in_parts: bool = False,
    **sections: dict[str, Any],
) -> SpeedPlan:
    """Returns a plan of batches of four groups; the settings' rules are not asked.

    Args:
      rows: completions of a group.
      sections: further settings by section.
    """
    replace, whole = dataclasses.replace, _base()
    defaults: dict[str, dict[str, Any]] = {
        "sync": {"mode": mode, "transfer": transfer or MODES[mode].transfer, **(sync or {})},
        "explorer": {"count": explorers, "groups_per_lease": groups_per_lease},
        "trainer": {"steps": steps, "groups_per_step": groups, "group_size": rows},
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 0},
    }
    changed = {
        name: replace(getattr(whole, name), **{**defaults.get(name, {}), **sections.get(name, {})})
        for name in {*defaults, *sections}
    }
    return plan_of(replace(whole, **changed), in_parts=in_parts)


def work_with(
    rollout: float = 2.0,
    train: float = 1.0,
    pull: float = 0.5,
    publish: float = 0.0,
    lengths: tuple[tuple[int, ...], ...] = ((1000,),),
    **more: Any,
) -> Workload:
    """Returns a workload whose rollouts take a time, by default all the same."""
    times = TransferTimes(Samples.of(publish), Samples.of(pull))
    return Workload(
        lengths=lengths,
        decoding=more.pop("decoding", Decoding(step_secs=rollout / 1000)),
        train=more.pop("train_samples", Samples.of(train)),
        groups_per_step=GROUPS,
        transfers=dict.fromkeys(TRANSFERS, times),
        **more,
    )
