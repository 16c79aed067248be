"""Decisions of the trainer's control, event by event."""

import pytest

from rl_sync.roles.trainer.control import (
    BatchLogged,
    BatchTaken,
    Begun,
    DropLog,
    EndTraining,
    EvaluateStep,
    EvaluationHandedIn,
    LogBatch,
    PositionKnown,
    PublishVersion,
    Replay,
    ReportStep,
    Restore,
    Restored,
    Resume,
    SaveSnapshot,
    SnapshotKept,
    StepReported,
    StepTrained,
    StopAsked,
    TakeBatch,
    TrainerControl,
    TrainerPlan,
    TrainStep,
    VersionAnnounced,
    transition,
)
from rl_sync.schedule import SyncSchedule

EXACT = SyncSchedule(interval=2, offset=0, pull="exact", max_staleness=1)
LATEST = SyncSchedule(interval=2, offset=0, pull="latest", max_staleness=3)
ENDS = {
    Restore: Restored(),
    Resume: PositionKnown(),
    Replay: StepTrained(),
    TakeBatch: BatchTaken(),
    LogBatch: BatchLogged(),
    TrainStep: StepTrained(),
    ReportStep: StepReported(),
    PublishVersion: VersionAnnounced(),
    SaveSnapshot: SnapshotKept(),
    EvaluateStep: EvaluationHandedIn(),
}


def executed(plan, begun=None, stop_before=None, **ends):
    """Executes all commands from the beginning; returns them.

    Args:
      stop_before: command in whose place the run is being stopped.
      ends: events that commands end with, by the names of the commands.
    """
    state, commands, done = TrainerControl(plan), (), []
    event = begun or Begun()
    while True:
        state, commands = transition(state, event)
        if commands[-1] == stop_before:
            state, commands = transition(state, StopAsked())
        done += commands
        last = commands[-1]
        if isinstance(last, EndTraining):
            return done
        event = ends.get(type(last).__name__, ENDS[type(last)])


def test_a_batch_is_logged_before_anybody_learns_of_its_step():
    done = executed(TrainerPlan(EXACT, steps=2))
    assert done == [
        Restore(0),
        Resume(0),
        EvaluateStep(0),
        PublishVersion(0),
        *(TakeBatch(1), LogBatch(1), TrainStep(1), ReportStep(1)),
        *(TakeBatch(2), LogBatch(2), TrainStep(2), ReportStep(2)),
        *(SaveSnapshot(2, ()), DropLog(2), EvaluateStep(2), EndTraining(2)),
    ]


def test_logged_steps_are_trained_again_without_asking_and_not_reported_twice():
    plan = TrainerPlan(EXACT, steps=6, save_every_steps=1)
    done = executed(plan, Begun((1,), logged=4), Restore=Restored((0,)), Resume=PositionKnown(3))
    assert done[:4] == [Restore(1), Resume(4), PublishVersion(0), Replay(2)]
    until = done.index(TakeBatch(5))
    assert [one for one in done[:until] if isinstance(one, Replay | TakeBatch | LogBatch)] == [
        *(Replay(2), Replay(3), Replay(4))
    ]
    assert [one for one in done if isinstance(one, ReportStep)][:2] == [
        ReportStep(4),
        ReportStep(5),
    ]
    assert PublishVersion(2) in done
    assert PublishVersion(4) in done


@pytest.mark.parametrize(("schedule", "wanted"), [(EXACT, [0, 2, 4]), (LATEST, [0, 2, 4])])
def test_a_version_that_no_explorer_will_use_is_not_published(schedule, wanted):
    done = executed(TrainerPlan(schedule, steps=6))
    assert [one.version for one in done if isinstance(one, PublishVersion)] == wanted


def test_a_snapshot_has_the_published_versions_that_are_still_in_use():
    ahead = SyncSchedule(interval=2, offset=3, pull="exact", max_staleness=4)
    plan = TrainerPlan(ahead, steps=20)
    # Step 8 takes groups of version 4, and the groups of version 6 are already being generated.
    assert [ahead.exact_version(e) for e in (8, 9, 10, 11, 12)] == [4, 4, 6, 6, 8]
    assert plan.in_use(7) == (4, 6)
    assert TrainerPlan(LATEST, steps=20).in_use(7) == (6,)
    assert TrainerPlan(EXACT, steps=20).in_use(7) == (6,)


def test_snapshots_are_kept_in_number_and_the_log_as_long_as_the_oldest_needs_it():
    plan = TrainerPlan(LATEST, steps=6, save_every_steps=2, keep=2)
    done = executed(plan)
    assert [one for one in done if isinstance(one, DropLog)] == [DropLog(2), DropLog(2), DropLog(4)]


def test_a_snapshot_that_is_there_is_not_saved_again():
    plan = TrainerPlan(LATEST, steps=4, save_every_steps=2, keep=2)
    done = executed(plan, Begun((2, 4), logged=4), Resume=PositionKnown(4))
    assert done == [Restore(4), Resume(4), EndTraining(4)]


def test_before_an_evaluation_a_snapshot_is_saved_if_the_best_is_kept():
    plan = TrainerPlan(LATEST, steps=4, evaluate_every_steps=3, saves_evaluated=True)
    done = executed(plan)
    at = done.index(EvaluateStep(3))
    assert done[at - 2 : at] == [SaveSnapshot(3, (2,)), DropLog(3)]
    assert SaveSnapshot(3, (2,)) not in executed(TrainerPlan(LATEST, 4, evaluate_every_steps=3))


def test_a_stopped_run_reports_and_saves_its_last_step_and_takes_no_other():
    plan = TrainerPlan(LATEST, steps=6)
    done = executed(plan, stop_before=TakeBatch(4))
    assert done[-3:] == [SaveSnapshot(3, (2,)), DropLog(3), EndTraining(3)]
    saving = TrainerPlan(LATEST, steps=6, save_every_steps=4, evaluate_every_steps=4)
    done = executed(saving, stop_before=PublishVersion(4))
    assert done[-4:] == [ReportStep(4), SaveSnapshot(4, (4,)), DropLog(4), EndTraining(4)]
