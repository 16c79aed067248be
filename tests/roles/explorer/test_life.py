"""Decisions of an explorer's life, event by event."""

from typing import NamedTuple

import pytest

from rl_sync.messages.events import Finish, GrantEvaluation, HoldBack, LeaseGrant
from rl_sync.roles.explorer import life
from rl_sync.roles.explorer.commands import (
    Ask,
    AwaitMeasured,
    AwaitVersion,
    BeginEvaluation,
    BeginRollout,
    BeginWait,
    CheckDeadline,
    CheckDelivery,
    ChunkEnded,
    Deliver,
    EndRollout,
    EndWait,
    Evaluate,
    EvaluationBegun,
    GiveUp,
    GoOn,
    LeaveRun,
    Look,
    Looked,
    NotPulled,
    Pause,
    Pull,
    RenewDeadline,
    RolledOut,
    RollOut,
    StartDeadline,
    TellFailure,
    TellTokens,
    WorkAnswered,
)
from rl_sync.roles.explorer.life import ExplorerLife, ExplorerPlan, suits
from rl_sync.types import Lease, Prompt

WITH_EVENT = (
    *(Look, Ask, AwaitVersion, Pull, RollOut, GoOn),
    *(BeginEvaluation, Evaluate, GiveUp, LeaveRun),
)
"""Commands that end with an event, or the life."""


class Story(NamedTuple):
    """A life so far: its plan, and the events that it was sent."""

    plan: ExplorerPlan
    events: tuple = ()

    @property
    def version(self):
        return lived(self)[0].version


WHOLE = Story(ExplorerPlan(groups=2))
PARTS = Story(ExplorerPlan(groups=2, in_parts=True))
SWAPPING = Story(ExplorerPlan(groups=2, swaps=True))
STREAMING = Story(ExplorerPlan(groups=2, in_parts=True, streams=True, swaps=True))
ELASTIC = Story(ExplorerPlan(groups=2, is_elastic=True))


def lived(story):
    """Returns a life, and its commands since the last event."""
    one = ExplorerLife(story.plan)
    commands, made = one.commands(), []
    for event in (None, *story.events):
        made = [commands.send(event)]
        while not isinstance(made[-1], WITH_EVENT):
            made.append(next(commands))
    return one, tuple(made)


def take(story, *events):
    """Continues a story; returns it, and the commands after the last event."""
    story = story._replace(events=story.events + events)
    return story, lived(story)[1]


def newest(version):
    return version


def arrived(version):
    return version


def lease(lease_id):
    return Lease(lease_id, lease_id, 0, Prompt(0, "1+1=", "2"))


def grant(version, *lease_ids, exactly=False):
    return LeaseGrant(1, version, exactly, [lease(one) for one in lease_ids])


def answered(answer, now=0.0):
    return WorkAnswered(answer, now)


def rolling(state, *lease_ids):
    """A life in its first rollout, with weights of version 3."""
    told = answered(grant(3, *lease_ids or (7,)))
    return take(state, told, newest(3), arrived(3))[0]


def test_the_first_request_says_nothing_of_weights():
    _, commands = take(WHOLE)
    assert commands[1:] == (CheckDelivery(), Ask())
    assert isinstance(commands[0], StartDeadline)


def test_the_first_grant_is_pulled_for_and_rolled_out():
    state, commands = take(WHOLE, answered(grant(3, 7, exactly=True)))
    assert commands == (StartDeadline("the weights of version 3", "the trainer"), AwaitVersion(3))
    state, commands = take(state, newest(3))
    assert commands == (Pull(3, True, 1),)
    state, commands = take(state, arrived(3))
    assert commands == (BeginRollout(1), RollOut((lease(7),), in_chunks=False))


def test_whole_groups_are_delivered_before_more_work_is_asked_for():
    state, commands = take(rolling(WHOLE), RolledOut(1, 1))
    assert commands[:2] == (EndRollout(), Deliver())
    assert commands[-1] == Look(), "the version at hand is a part of the request"
    _, commands = take(state, Looked(5.0, at_hand=2))
    assert commands == (CheckDelivery(), Ask(unfinished=1, version=3))


def test_nothing_is_delivered_if_nothing_is_whole():
    assert Deliver() not in take(rolling(WHOLE), RolledOut(0, 1))[1]


@pytest.mark.parametrize(("at_hand", "version"), [(None, None), (2, 3), (5, 5)])
def test_a_request_names_the_newest_weights_that_are_here(at_hand, version):
    _, commands = take(rolling(WHOLE), RolledOut(1, 0), Looked(5.0, at_hand))
    assert commands[-1].version == version


def test_a_held_back_explorer_waits_at_the_master_until_it_has_work():
    state, commands = take(WHOLE, answered(HoldBack("synchronization", 4)))
    again = (CheckDeadline(), CheckDelivery(), Ask(poll_secs=life.POLL_SECS))
    assert commands == (BeginWait("synchronization"), *again)
    state, commands = take(state, answered(HoldBack("synchronization", 4)))
    assert commands == again
    _, commands = take(state, answered(Finish("the run ended")))
    assert commands == (EndWait(), LeaveRun())


def test_a_wait_for_another_reason_is_another_wait():
    state, _ = take(WHOLE, answered(HoldBack("the first weights", 4)))
    _, commands = take(state, answered(HoldBack("synchronization", 4)))
    assert commands[:3] == (EndWait(), BeginWait("synchronization"), CheckDeadline())


def test_an_explorer_waits_for_a_long_sft_as_long_as_it_goes_on():
    state, renewed = take(WHOLE)[0], []
    for step in (None, 1, 1, 2, 2, 2):
        state, commands = take(state, answered(HoldBack("the first weights", step)))
        renewed.append(RenewDeadline() in commands)
    assert renewed == [False, True, False, True, False, False]


def test_a_version_that_is_not_there_is_waited_for():
    state, commands = take(WHOLE, answered(grant(3, 7)), newest(-1))
    poll = AwaitVersion(3, life.POLL_SECS)
    assert commands == (BeginWait("synchronization", 3), poll)
    state, commands = take(state, newest(2))
    assert commands == (CheckDeadline(), Pause(life.PAUSE_SECS), poll)
    _, commands = take(state, newest(4))
    assert commands == (EndWait(), Pull(3, False, 1))


def test_a_late_pull_is_repeated_until_its_deadline_and_keeps_its_start():
    state, _ = take(WHOLE, answered(grant(3, 7)), newest(3))
    _, commands = take(state, NotPulled(8.5))
    assert commands == (CheckDeadline(), Pull(3, False, 1, since_secs=8.5))


def test_a_pull_that_fails_is_repeated_if_the_trainer_is_started_again():
    fetching = (answered(grant(3, 7)), newest(3))
    _, commands = take(ELASTIC, *fetching, NotPulled(8.5, "the trainer is gone"))
    assert commands == (
        TellFailure("the trainer is gone"),
        CheckDeadline(),
        Pause(life.POLL_SECS),
        Pull(3, False, 1, since_secs=8.5),
    )
    _, commands = take(WHOLE, *fetching, NotPulled(8.5, "the trainer is gone"))
    assert commands == (GiveUp("the trainer is gone"),)


def test_an_explorer_of_a_cluster_gives_up_if_it_needs_weights_that_are_gone():
    state = take(WHOLE, answered(grant(3, 7, exactly=True)), newest(3), arrived(3))[0]
    state, _ = take(state, RolledOut(1, 0), Looked(0.0, None))
    _, commands = take(state, answered(grant(2, 8, exactly=True)))
    (given_up,) = commands
    assert "version 2 of the weights, which no process has any more" in given_up.why
    assert "the explorer has version 3" in given_up.why


def test_where_the_trainer_keeps_versions_an_older_one_is_pulled_again():
    told = answered(grant(3, 7, exactly=True))
    state, _ = take(ELASTIC, told, newest(3), arrived(3), RolledOut(1, 0))
    state, _ = take(state, Looked(0.0, None), answered(grant(2, 8, exactly=True)))
    _, commands = take(state, newest(3))
    assert commands == (Pull(2, True, 1, None),)


def test_weights_newer_than_those_of_a_grant_are_pulled_again_only_if_it_wants_its_own():
    assert [suits(grant(3), version) for version in (None, 2, 3, 4)] == [False, False, True, True]
    exact = grant(3, exactly=True)
    assert [suits(exact, version) for version in (None, 2, 3, 4)] == [False, False, True, False]


def evaluating(story):
    """A life that has begun to evaluate version 3, with one group in flight."""
    told = answered(GrantEvaluation(3))
    story, commands = take(rolling(story), RolledOut(1, 1), Looked(1.0), told)
    assert commands == (BeginEvaluation(3),)
    return take(story, EvaluationBegun(1, 3))[0]


def test_an_evaluation_begins_and_the_explorer_asks_for_more_work():
    _, commands = take(evaluating(WHOLE), Looked(2.0))
    assert commands == (CheckDelivery(), Ask(unfinished=1, version=None, evaluating=1))


def test_a_streaming_explorer_that_begins_an_evaluation_goes_on_with_its_groups():
    streaming = rolling(STREAMING)
    state, _ = take(streaming, RolledOut(0, 1, 1), Looked(1.0, newest=4))
    state, commands = take(state, answered(GrantEvaluation(4)))
    assert commands == (EndRollout(), BeginEvaluation(4))
    state, _ = take(state, EvaluationBegun(1, 4), Looked(2.0))
    state, commands = take(state, answered(grant(4)))
    assert commands == (BeginRollout(1), RollOut((), in_chunks=False))
    state, _ = take(state, RolledOut(1, 0, 1, evaluating=0), Looked(3.0))
    assert lived(state)[1][-1].evaluating == 0


def test_an_explorer_that_is_held_back_goes_on_with_its_evaluation_and_does_not_wait():
    state, _ = take(evaluating(WHOLE), Looked(2.0))
    state, commands = take(state, answered(HoldBack("synchronization")))
    assert commands[-1] == Evaluate()
    state, commands = take(state, 1)
    assert commands == (Ask(unfinished=1, evaluating=1),)
    state, _ = take(state, answered(HoldBack("synchronization")))
    _, commands = take(state, 0)
    assert commands == (Ask(unfinished=1),), "the master hears that it has ended"


def test_an_explorer_without_evaluations_waits_at_the_master():
    state, _ = take(evaluating(WHOLE), Looked(2.0), answered(HoldBack("synchronization")), 0)
    _, commands = take(state, answered(HoldBack("synchronization")))
    assert commands[-1] == Ask(unfinished=1, poll_secs=life.POLL_SECS)


def test_an_evaluation_in_progress_is_finished_and_judged_before_the_explorer_leaves():
    state, _ = take(evaluating(WHOLE), Looked(2.0))
    state, commands = take(state, answered(Finish("the run ended")))
    assert commands == (Evaluate(),)
    state, commands = take(state, 1)
    assert commands == (Evaluate(),)
    assert take(state, 0)[1] == (AwaitMeasured(), LeaveRun())


def test_a_version_that_is_gone_leaves_the_explorer_with_its_weights():
    state, _ = take(rolling(WHOLE), RolledOut(1, 0), Looked(1.0), answered(GrantEvaluation(2)))
    state, _ = take(state, EvaluationBegun(0, 3), Looked(2.0))
    assert state.version == 3
    assert lived(state)[1][-1] == Ask()


def test_a_rollout_in_parts_goes_on_until_nothing_is_in_flight():
    state, commands = take(rolling(PARTS, 7, 8), RolledOut(1, 1))
    assert commands == (Deliver(), CheckDelivery(), RollOut((), in_chunks=False))
    _, commands = take(state, RolledOut(1, 0))
    assert commands[:2] == (EndRollout(), Deliver())


def test_newer_weights_are_taken_in_flight_but_not_looked_for_all_the_time():
    state, commands = take(rolling(SWAPPING), ChunkEnded())
    assert commands == (Look(0.0),)
    state, commands = take(state, Looked(5.0, newest=5))
    assert commands == (Pull(4, False, None),)
    state, commands = take(state, arrived(5))
    assert commands == (GoOn(),)
    state, commands = take(state, ChunkEnded())
    assert commands == (Look(5.0 + life.IN_FLIGHT_POLL_SECS),)
    state, commands = take(state, Looked(5.05, newest=None))
    assert commands == (GoOn(),)
    assert state.version == 5
    assert take(state, RolledOut(1, 0))[1][:2] == (EndRollout(), Deliver())


def test_weights_that_were_withdrawn_are_gone_without():
    state, commands = take(rolling(SWAPPING), ChunkEnded(), Looked(5.0, newest=5), NotPulled(5.0))
    assert (state.version, commands) == (3, (GoOn(),))


def between_parts(unfinished, room, now=1.0, newest=None):
    state, commands = take(rolling(STREAMING), RolledOut(0, unfinished, room))
    assert commands == (CheckDelivery(), Look(0.0))
    return take(state, Looked(now, newest=newest))


def test_the_master_is_told_the_tokens_in_flight_after_each_chunk():
    telling = Story(ExplorerPlan(groups=2, tells=True))
    state, commands = take(rolling(telling), ChunkEnded())
    assert commands == (TellTokens(), GoOn())
    assert take(state, ChunkEnded())[1] == (TellTokens(), GoOn())
    assert TellTokens() not in take(state, RolledOut(1, 0))[1], "nothing is in flight"
    in_parts = Story(ExplorerPlan(groups=2, in_parts=True, tells=True))
    assert lived(rolling(in_parts))[1][-1].in_chunks is False, "a part is a chunk"
    assert take(rolling(in_parts), RolledOut(0, 1))[1][0] == TellTokens()


def test_a_streaming_explorer_asks_between_parts_if_it_has_room():
    state, commands = between_parts(unfinished=1, room=1)
    assert commands == (Ask(1, 1),)
    _, commands = take(state, answered(grant(3, 8)))
    assert commands == (RollOut((lease(8),), in_chunks=False),)


def test_a_streaming_explorer_without_room_asks_only_for_newer_weights():
    assert between_parts(unfinished=2, room=0)[1] == (RollOut((), in_chunks=False),)
    assert between_parts(unfinished=2, room=0, newest=3)[1] == (RollOut((), in_chunks=False),)
    assert between_parts(unfinished=2, room=0, newest=4)[1] == (Ask(2, 0),)


def test_a_streaming_explorer_without_groups_in_flight_always_asks():
    assert between_parts(unfinished=0, room=0)[1] == (Ask(0, 0),)


def test_a_streaming_explorer_that_got_no_leases_does_not_ask_at_once_again():
    state, _ = between_parts(unfinished=1, room=1)
    state, commands = take(state, answered(grant(3), now=1.0))
    assert commands == (RollOut((), in_chunks=False),)
    state, _ = take(state, RolledOut(0, 1, 1))
    assert take(state, Looked(1.01))[1] == (RollOut((), in_chunks=False),)
    assert take(state, Looked(1.03))[1] == (Ask(1, 1),)


def test_a_grant_of_newer_weights_ends_a_streaming_rollout_and_is_taken_up():
    state, _ = between_parts(unfinished=1, room=1, newest=4)
    state, commands = take(state, answered(grant(4, 9)))
    assert commands[0] == EndRollout()
    assert commands[-1] == AwaitVersion(4)
    _, commands = take(state, newest(4), arrived(4))
    assert commands == (BeginRollout(1), RollOut((lease(9),), in_chunks=False))


def test_a_streaming_explorer_that_is_held_back_ends_its_rollout_and_asks_anew():
    state, _ = between_parts(unfinished=0, room=2)
    state, commands = take(state, answered(HoldBack("synchronization")))
    assert [type(one) for one in commands] == [EndRollout, StartDeadline, Look]


def test_a_streaming_rollout_ends_after_as_many_groups_as_fill_the_slots():
    state, _ = between_parts(unfinished=1, room=1)
    state, _ = take(state, answered(grant(3, 8)), RolledOut(1, 1, 1), Looked(1.2))
    _, commands = take(state, answered(grant(3, 9)), RolledOut(1, 1, 1))
    assert commands[:2] == (EndRollout(), Deliver())
