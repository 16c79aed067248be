"""Snapshots from which the log of batches leads to a later step, and which therefore stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rl_sync.schedule import SyncSchedule


def oldest_version(schedule: SyncSchedule, trained: int, steps: int) -> int:
    """Returns the oldest version that explorers may ask for once a step is trained.

    Under latest pulls it is the last that was published: an explorer that is started again has no
    other until the next one, if there is a next one.

    Args:
      schedule: the schedule, with the step that it counts from.
      trained: the step.
      steps: last step of the run, whose weights no explorer uses.
    """
    if schedule.pull == "exact":
        return schedule.exact_version(trained + 1)
    used = max(min(trained, steps - 1), schedule.start)
    return used - (used - schedule.start) % schedule.interval


def leading_steps(
    reaches: Mapping[int, int], schedule: SyncSchedule, trained: int, steps: int
) -> list[int]:
    """Lists the steps from which a trainer can go on as if it had not died, the newest first.

    The state of such a step leads to all versions that explorers may still ask for, and by the log
    to the last step that was trained. Step 0, the initial policy, is listed only if the schedule
    counts from it.

    Args:
      reaches: for 0 and each step that has a snapshot, the last step that the log leads to.
      schedule: the schedule, with the step that it counts from.
      trained: last step that the master counts.
      steps: last step of the run.
    """
    oldest = oldest_version(schedule, trained, steps)
    return sorted(
        (
            step
            for step, reached in reaches.items()
            if step <= oldest and reached >= trained and (step > 0 or schedule.start == 0)
        ),
        reverse=True,
    )


def still_needed(
    schedule: SyncSchedule, step: int, snapshots: Collection[int], steps: int
) -> list[int]:
    """Returns the step whose state leads to the versions which explorers use after a step.

    These are older than the step if explorers run ahead, or if not each step's version is
    published. Then the newest snapshot alone does not lead to them. It is at most one step, of a
    snapshot or of the initial policy, which is made anew.
    """
    oldest = oldest_version(schedule, step, steps)
    if oldest >= step:
        return []
    initial = {0} if schedule.start == 0 else set[int]()
    return sorted(one for one in {*snapshots, *initial} if one <= oldest)[-1:]


def first_logged(snapshots: Sequence[int], keep: int, needed: Collection[int]) -> int:
    """Returns the first step whose batch stays in the log.

    The batch of a snapshot's own step stays: it tells which groups the trainer had left for later.

    Args:
      snapshots: steps of the snapshots, in order; there is at least one.
      keep: number of newest snapshots that are kept.
      needed: see `still_needed`.
    """
    return min([*needed, *snapshots[-keep:]])
