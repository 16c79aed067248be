"""Decisions of a trainer's life, command by command."""

import functools

import pytest

from rl_sync.roles.trainer.commands import (
    AbandonRun,
    AnnounceBeginning,
    AnnounceGoingOn,
    AwaitLog,
    AwaitReports,
    BeginEnd,
    EndTraining,
    EvaluateStep,
    GiveGroupsBack,
    Initialize,
    LogBatch,
    OpenStreams,
    OthersFailedError,
    PublishVersion,
    Restore,
    RestoreNewest,
    SaveInMemory,
    SaveSnapshot,
    ServeWeights,
    StartingPoint,
    StopAskedError,
    TakeBatch,
    TrainStep,
)
from rl_sync.roles.trainer.life import KnownRun, LeftBehind, TrainerLife, TrainerPlan
from rl_sync.schedule import SyncSchedule

EXACT = SyncSchedule(interval=2, offset=0, pull="exact", max_staleness=1)
LATEST = SyncSchedule(interval=2, offset=0, pull="latest", max_staleness=3)
AHEAD = SyncSchedule(interval=2, offset=3, pull="exact", max_staleness=4)


DAMAGED = None


def step_of(command, snapshots):
    """Returns the step that a command ends with; None if it makes no state."""
    match command:
        case Initialize():
            return 0
        case RestoreNewest():
            return max(snapshots)
        case Restore(step):
            return step
    return None


def executed(plan, found=None, instead=None):
    """Executes all commands from the beginning; returns them.

    Args:
      instead: maps a command to what it ends with, or meets, in place of being executed.
    """
    instead, found = instead or {}, found or LeftBehind()
    life, done = TrainerLife(plan, found).commands(), []
    following = functools.partial(life.send, None)
    while True:
        try:
            command = following()
        except StopIteration:
            return done
        end = instead.get(command, step_of(command, found.snapshots))
        if isinstance(end, Exception):
            following = functools.partial(life.throw, end)
            continue
        following = functools.partial(life.send, end)
        if command not in instead:
            done.append(command)
        if isinstance(command, AbandonRun):
            return done


def chosen(commands, *kinds):
    return [one for one in commands if isinstance(one, kinds)]


def test_a_batch_is_logged_before_anybody_learns_of_its_step():
    done = executed(TrainerPlan(EXACT, steps=3))
    assert done == [
        *(Initialize(), EvaluateStep(0), AnnounceBeginning(0)),
        *(OpenStreams(StartingPoint.at(0)), PublishVersion(0)),
        *(TakeBatch(1), LogBatch(1), TrainStep(1, False), ServeWeights()),
        *(TakeBatch(2), LogBatch(2), TrainStep(2, False)),
        *(AwaitLog(), PublishVersion(2), ServeWeights()),
        *(TakeBatch(3), LogBatch(3), TrainStep(3, False), ServeWeights()),
        *(AwaitReports(), GiveGroupsBack("the run ended"), BeginEnd(), SaveSnapshot(3, True)),
        *(EvaluateStep(3), EndTraining(3)),
    ]


def test_logged_steps_are_trained_again_and_those_that_count_are_not_reported():
    plan = TrainerPlan(EXACT, steps=6, save_every_steps=1)
    known = KnownRun(start=0, counted=3)
    begun = LeftBehind(known, snapshots=(1,), reaches={0: 0, 1: 4})
    done = executed(plan, begun)
    point = StartingPoint(0, 1, counted=3, logged=4, oldest_version=2, goes_on=True)
    assert done[:3] == [Restore(1), AnnounceGoingOn(3, 1), OpenStreams(point)]
    assert chosen(done, TrainStep) == [TrainStep(step, step <= 3) for step in (2, 3, 4, 5, 6)]
    assert chosen(done, LogBatch) == [LogBatch(5), LogBatch(6)]
    # Version 0 was used up by step 2; the others may not have reached anybody.
    assert chosen(done, PublishVersion) == [PublishVersion(2), PublishVersion(4)]
    assert [one.step for one in chosen(done, SaveSnapshot)] == [3, 4, 5, 6]


def test_once_all_steps_count_nothing_is_published_that_explorers_would_have_to_come_for():
    known, snapshots = KnownRun(start=0, counted=6), (2,)
    begun = LeftBehind(known, snapshots, reaches={0: 0, 2: 6})
    done = executed(TrainerPlan(EXACT, steps=6), begun)
    assert [one.step for one in chosen(done, TrainStep)] == [3, 4, 5, 6]
    assert chosen(done, PublishVersion) == []


def test_the_master_counts_all_that_is_logged_before_further_groups_are_taken():
    """It takes a group that is not in the buffer for lost, though step 4 has consumed it."""
    begun = LeftBehind(KnownRun(start=0, counted=3), reaches={0: 4})
    done = executed(TrainerPlan(LATEST, steps=6), begun)
    assert done[done.index(TakeBatch(5)) - 1] == AwaitReports()
    assert AwaitReports() not in done[: done.index(TakeBatch(4))]
    counted = executed(
        TrainerPlan(LATEST, 6), LeftBehind(KnownRun(start=0, counted=4), reaches={0: 4})
    )
    assert AwaitReports() not in counted[: counted.index(TakeBatch(5))]


def test_the_state_that_leads_to_all_versions_in_use_is_restored():
    """The newest snapshot is too new, if explorers still ask for an older version."""
    known = KnownRun(start=0, counted=7)
    plan = TrainerPlan(AHEAD, steps=20)
    reaches = {0: 0, 3: 7, 5: 7, 7: 7}
    # Step 8 takes groups of version 4.
    done = executed(plan, LeftBehind(known, snapshots=(3, 5, 7), reaches=reaches))
    assert done[0] == Restore(3)
    assert chosen(done, PublishVersion)[:2] == [PublishVersion(4), PublishVersion(6)]


@pytest.mark.parametrize("counted", [2, 3])
def test_under_latest_pulls_the_newest_version_is_published_again(counted):
    """An explorer that is started again would wait for the next one, which needs its groups."""
    known = KnownRun(start=0, counted=counted)
    done = executed(TrainerPlan(LATEST, steps=9), LeftBehind(known, reaches={0: 3}))
    assert chosen(done, PublishVersion)[0] == PublishVersion(2)


def test_a_damaged_snapshot_gives_way_to_an_earlier_one():
    known = KnownRun(start=0, counted=5)
    begun = LeftBehind(known, snapshots=(2, 4), reaches={0: 5, 2: 5, 4: 5})
    plan = TrainerPlan(EXACT, steps=6)
    first = {Restore(4): DAMAGED}
    assert executed(plan, begun, first)[0] == Restore(2)
    both = first | {Restore(2): DAMAGED}
    assert executed(plan, begun, both)[0] == Initialize()
    resumed = LeftBehind(KnownRun(start=2, counted=5), (2, 4), {0: 5, 2: 5, 4: 5})
    assert executed(plan, resumed, both) == [AbandonRun(5)]


def test_without_a_log_that_leads_there_the_trainer_gives_up():
    begun = LeftBehind(KnownRun(start=0, counted=5), (2, 4), {0: 1, 2: 4, 4: 4})
    assert executed(TrainerPlan(EXACT, steps=6), begun) == [AbandonRun(5)]


@pytest.mark.parametrize(("schedule", "wanted"), [(EXACT, [0, 2, 4]), (LATEST, [0, 2, 4])])
def test_a_version_that_no_explorer_will_use_is_not_published(schedule, wanted):
    done = executed(TrainerPlan(schedule, steps=6))
    assert [one.version for one in done if isinstance(one, PublishVersion)] == wanted


def test_a_run_that_resumes_counts_its_schedule_from_the_snapshot():
    done = executed(TrainerPlan(LATEST, steps=6), LeftBehind(snapshots=(1, 3)))
    assert done[:4] == [
        RestoreNewest(),
        AnnounceBeginning(3),
        OpenStreams(StartingPoint.at(3)),
        PublishVersion(3),
    ]
    assert chosen(done, PublishVersion) == [PublishVersion(3), PublishVersion(5)]


def test_a_run_whose_last_step_is_saved_only_ends():
    done = executed(TrainerPlan(LATEST, steps=4), LeftBehind(snapshots=(4,)))
    assert not chosen(done, TakeBatch, PublishVersion)
    assert done[-2:] == [EvaluateStep(4), EndTraining(4)]


def test_before_an_evaluation_a_snapshot_is_saved_if_the_best_is_kept():
    done = executed(TrainerPlan(LATEST, 4, evaluate_every_steps=3, saves_evaluated=True))
    at = done.index(EvaluateStep(3))
    assert done[at - 2 : at] == [AwaitReports(), SaveSnapshot(3, False)]
    assert SaveSnapshot(3, False) not in executed(TrainerPlan(LATEST, 4, evaluate_every_steps=3))


def test_between_snapshots_on_disk_there_are_some_in_memory():
    plan = TrainerPlan(LATEST, steps=6, save_every_steps=4, memory_every_steps=2)
    done = executed(plan)
    assert chosen(done, SaveSnapshot, SaveInMemory) == [
        *(SaveInMemory(2), SaveSnapshot(4, False), SaveSnapshot(6, True))
    ]


def test_an_evaluation_that_was_made_is_not_made_again():
    plan = TrainerPlan(LATEST, steps=4, evaluate_every_steps=1)
    known = KnownRun(start=0, counted=2, evaluated=frozenset({0, 1, 2}))
    done = executed(plan, LeftBehind(known, reaches={0: 2}))
    assert chosen(done, EvaluateStep) == [EvaluateStep(3), EvaluateStep(4)]


def test_a_stopped_run_saves_its_last_step_and_takes_no_other():
    done = executed(TrainerPlan(LATEST, 6), instead={TakeBatch(4): StopAskedError("enough")})
    assert done[-5:] == [
        *(AwaitReports(), GiveGroupsBack("enough"), BeginEnd()),
        *(SaveSnapshot(3, True), EndTraining(3)),
    ]


def test_a_run_that_is_stopped_before_it_has_begun_leaves_at_once():
    assert executed(TrainerPlan(LATEST, 6), instead={Initialize(): StopAskedError("enough")}) == []
    stopped = executed(TrainerPlan(LATEST, 6), instead={EvaluateStep(0): StopAskedError("enough")})
    assert stopped == [Initialize()]


def test_when_others_fail_the_state_is_saved_and_no_group_given_back():
    done = executed(TrainerPlan(LATEST, 6), instead={PublishVersion(2): OthersFailedError()})
    assert done[-4:] == [AwaitReports(), BeginEnd(), SaveSnapshot(2, True), EndTraining(2)]


def test_an_initial_policy_that_cannot_be_evaluated_is_not_lost():
    done = executed(TrainerPlan(LATEST, 6), instead={EvaluateStep(0): OthersFailedError()})
    assert done == [Initialize(), SaveSnapshot(0, True)]
    resumed = LeftBehind(snapshots=(3,))
    failed = executed(TrainerPlan(LATEST, 6), resumed, {AnnounceBeginning(3): OthersFailedError()})
    assert failed == [RestoreNewest()]
