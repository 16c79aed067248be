"""Snapshots from which the log of batches leads to a later step."""

from __future__ import annotations

from pathlib import Path

from rl_sync.checkpoints.batch_log import BatchLog
from rl_sync.checkpoints.snapshots import snapshot_steps
from rl_sync.schedule import SyncSchedule


def oldest_version(schedule: SyncSchedule, trained: int) -> int:
    """Returns the oldest version that explorers may ask for once a step is trained.

    Args:
      schedule: the schedule, with the step that it counts from.
    """
    return schedule.exact_version(trained + 1) if schedule.pull == "exact" else trained


def leading_steps(
    snapshots: Path, log: BatchLog | None, schedule: SyncSchedule, trained: int
) -> list[int]:
    """Lists the steps from which a trainer can go on as if it had not died, the newest first.

    The state of such a step leads to all versions that explorers may still ask for, and by the log
    to the last step that was trained. The list has the steps of snapshots; and 0, if the initial
    policy is such a state.

    Args:
      log: log of batches; None if batches are drawn, and can be drawn again.
      schedule: the schedule, with the step that it counts from.
      trained: last step that the master counts.
    """
    oldest = oldest_version(schedule, trained)
    steps = {step for step in snapshot_steps(snapshots) if step <= oldest}
    if schedule.start == 0:
        steps.add(0)
    reached = (step for step in steps if log is None or log.reach(step) >= trained)
    return sorted(reached, reverse=True)
