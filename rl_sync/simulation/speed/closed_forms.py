"""Closed forms of a trainer step's time, as a check of the simulation.

They are exact if all times are constant, judges have room, and each role has devices of its own.
With varying times the simulation is slower, since the slowest counts wherever one role waits for
another.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from rl_sync.schedule import SyncSchedule
from rl_sync.simulation.speed.simulated_site import lengths_of
from rl_sync.simulation.speed.simulated_slots import SimulatedSlots
from rl_sync.simulation.speed.speed_plan import SpeedPlan
from rl_sync.simulation.speed.workload import Workload

_DRAWN_LEASES = 48


class StepTimes(NamedTuple):
    """Mean seconds of the parts of a trainer step.

    Attributes:
      rollout: of a lease; all explorers generate a batch together in this time.
      deliver: from the end of a rollout to the start of a step that waits for it.
      train: of a trainer step.
      sync: from the end of a step until all explorers have its version.
      pull: of a transfer to one explorer; 0 if it fetches versions while it generates.
    """

    rollout: float
    deliver: float
    train: float
    sync: float
    pull: float


def step_secs_of(times: StepTimes, schedule: SyncSchedule, meets: bool) -> float:
    """Returns the time of a step in the long run.

    It is the greatest mean of three loops. With an interval I, and k steps from the step that makes
    a version to the first step that needs it:

    - the trainer's: T + W/I if it meets the explorers at syncs, otherwise T;
    - the explorers': R + W/I, or R + P/I if they pull without the trainer;
    - a version's, which travels and is used for a batch that is delivered and trained on:
      (R + D + T + W + x·max(R, T)) / (k + x). x is the number of steps from there to the next
      publication.

    A synchronous schedule has k = 1, so R + D + T + W with I = 1. One-step off-policy has k = 2:
    max(R + W, T + W, (R + D + T + W) / 2). Asynchronous ones have k = max_staleness + 2 - I.

    Args:
      meets: whether trainer and explorers meet at each sync.
    """
    interval = schedule.interval
    k = schedule.staleness_bound + 2 - interval
    x = -k % interval
    loop = times.rollout + times.deliver + times.train + times.sync
    return max(
        times.train + (times.sync / interval if meets else 0.0),
        times.rollout + (times.sync if meets else times.pull) / interval,
        (loop + x * max(times.rollout, times.train)) / (k + x),
    )


def closed_form(plan: SpeedPlan, work: Workload) -> float:
    """Returns the closed form of a step's time.

    On shared cores a step takes at least the time of all its work on all cores.
    """
    times = step_times(plan, work)
    found = step_secs_of(times, plan.schedule, plan.meets)
    if work.shared is None:
        return found
    used = times.train * work.shared.trainer
    used += plan.master.explorers * (times.rollout - work.waiting.mean) * work.shared.explorer
    return max(found, used / work.shared.cores)


def step_times(plan: SpeedPlan, work: Workload) -> StepTimes:
    """Returns the mean times of a plan's steps."""
    master, transfer = plan.master, work.transfers[plan.transfer]
    per_lease = min(master.groups_per_lease, -(-master.groups_per_step // master.explorers))
    publish, pull = transfer.publish.mean, transfer.pull.mean
    apart = pull * (master.explorers if transfer.shares_link else 1)
    return StepTimes(
        rollout=_rollout_secs(plan, work, per_lease) + work.waiting.mean + work.calls.lease,
        deliver=work.judge_secs
        + work.insert.mean * per_lease
        + work.layout.mean
        + work.calls.judge
        + work.calls.insert,
        train=work.train.mean * master.groups_per_step / work.groups_per_step,
        sync=pull * master.explorers if plan.is_joint else publish + apart,
        pull=0.0 if plan.prefetches else pull,
    )


def _rollout_secs(plan: SpeedPlan, work: Workload, groups: int) -> float:
    """Returns the mean time of a lease of some groups, over draws."""
    times = []
    for lease in range(_DRAWN_LEASES):
        slots = SimulatedSlots(plan.settings.slots)
        for group in range(groups):
            slots.add(group, lengths_of(work, 0, lease * groups + group, 0))
        decoded = slots.advance()
        times.append(work.decoding.secs(decoded.steps, decoded.row_steps))
    return statistics.fmean(times) + work.decoding.prefill_secs * groups
