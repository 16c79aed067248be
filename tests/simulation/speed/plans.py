"""Plans and workloads of simulated runs, with constant or varying times."""

from __future__ import annotations

import math
from typing import Any

from rl_sync.roles.master.state import MasterSettings
from rl_sync.schedule import MODES, resolve
from rl_sync.simulation.speed.speed_plan import SpeedPlan
from rl_sync.simulation.speed.workload import Decoding, Samples, TransferTimes, Workload
from rl_sync.transfer import TRANSFERS

GROUPS = 4


def plan_with(
    mode: str = "synchronous",
    *,
    explorers: int = 1,
    steps: int = 24,
    transfer: str | None = None,
    sync: dict[str, Any] | None = None,
    **more: Any,
) -> SpeedPlan:
    """Returns a plan of batches of four groups."""
    transfer = transfer or MODES[mode].transfer
    streams = more.get("streams", False)
    master = MasterSettings(
        schedule=resolve(mode, **(sync or {})),
        steps=steps,
        groups_per_step=GROUPS,
        explorers=explorers,
        groups_per_lease=more.pop("groups_per_lease", -(-GROUPS // explorers)),
        lease_secs=math.inf,
        carries_over=streams or more.get("budget_tokens", 0) > 0,
        screening=more.pop("screening", MasterSettings.screening),
        evaluate_every_steps=more.pop("explorers_evaluate_every", 0),
    )
    is_joint = TRANSFERS[transfer].is_joint
    return SpeedPlan(master, transfer, groups_trained=GROUPS, is_joint=is_joint, **more)


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
