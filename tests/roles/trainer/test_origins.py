"""From which snapshots a trainer can go on, and which it therefore keeps."""

import pytest

from rl_sync.roles.trainer.origins import first_logged, leading_steps, oldest_version, still_needed
from rl_sync.schedule import SyncSchedule

EXACT = SyncSchedule(interval=2, offset=3, pull="exact", max_staleness=4)
LATEST = SyncSchedule(interval=3, offset=0, pull="latest", max_staleness=4)
# The steps of this run count from a snapshot of step 10.
RESUMED = SyncSchedule(interval=3, offset=0, pull="latest", max_staleness=4, start=10)
STEPS = 30


@pytest.mark.parametrize(
    ("schedule", "trained", "oldest"),
    [(EXACT, 7, 4), (EXACT, 0, 0), (LATEST, 7, 6), (LATEST, 6, 6), (RESUMED, 12, 10)],
)
def test_the_oldest_version_in_use_is_one_that_was_published(schedule, trained, oldest):
    assert oldest_version(schedule, trained, STEPS) == oldest
    assert schedule.publishes_after(oldest)


@pytest.mark.parametrize(("trained", "oldest"), [(30, 27), (29, 27), (27, 27)])
def test_the_last_step_is_not_published_so_the_version_before_it_stays_in_use(trained, oldest):
    """An explorer may be evaluating with it."""
    assert oldest_version(LATEST, trained, STEPS) == oldest
    assert oldest_version(SyncSchedule(1, 0, "latest", 1), 30, STEPS) == 29
    assert oldest_version(SyncSchedule(1, 0, "latest", 1, start=30), 30, STEPS) == 30


def test_a_state_after_the_oldest_version_in_use_does_not_lead_to_it():
    reaches = {0: 9, 3: 9, 6: 9, 7: 9}
    assert leading_steps(reaches, LATEST, 8, STEPS) == [6, 3, 0]
    assert leading_steps(reaches, LATEST, 10, STEPS) == []
    assert leading_steps({0: 12, 10: 12}, RESUMED, 11, STEPS) == [10], (
        "the initial policy is not its"
    )


@pytest.mark.parametrize(
    ("schedule", "step", "snapshots", "needed"),
    [
        (LATEST, 6, [3], []),
        (LATEST, 7, [3, 6], [6]),
        (LATEST, 7, [], [0]),
        (EXACT, 7, [2, 5], [2]),
        (RESUMED, 12, [10], [10]),
        (RESUMED, 12, [], []),
    ],
)
def test_a_snapshot_that_older_versions_follow_from_is_kept(schedule, step, snapshots, needed):
    assert still_needed(schedule, step, snapshots, STEPS) == needed


@pytest.mark.parametrize("save_every", [1, 2, 3, 5])
@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("schedule", [EXACT, LATEST], ids=["exact", "latest"])
def test_whenever_the_trainer_dies_something_leads_to_its_last_step(schedule, save_every, keep):
    snapshots, first = [], 1
    for step in range(1, 30):
        reaches = {one: step if one + 1 >= first else one for one in {0, *snapshots}}
        assert leading_steps(reaches, schedule, step, STEPS), f"nothing leads to step {step}"
        if step % save_every == 0:
            needed = still_needed(schedule, step, snapshots, STEPS)
            snapshots = [*snapshots, step]
            first = first_logged(snapshots, keep, needed)
            snapshots = [one for one in snapshots if one in {*snapshots[-keep:], *needed}]
        reaches = {one: step if one + 1 >= first else one for one in {0, *snapshots}}
        assert leading_steps(reaches, schedule, step, STEPS), f"nothing leads to step {step}"
