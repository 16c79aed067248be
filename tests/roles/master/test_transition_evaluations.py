"""The master hands the evaluation of a version to one explorer."""

import dataclasses

import pytest

from rl_sync.messages.events import (
    BatchTrained,
    ExplorerDied,
    GrantEvaluation,
    GrantLeases,
    GroupsBuffered,
    LeaveOutEvaluation,
    StopRequested,
    VersionPublished,
)
from rl_sync.roles.master.transition import end
from rl_sync.schedule import resolve
from tests.roles.master.mastering import ids, lease, settings_of, started, take

SETTINGS = dataclasses.replace(
    settings_of(resolve("multi_explorer", interval=2), steps=12, explorers=2),
    evaluate_every_steps=4,
)


def trained_to(state, step):
    """Trains so many steps with version after version."""
    for at in range(state.trained_steps + 1, step + 1):
        state, grant = lease(state)
        assert isinstance(grant, GrantLeases), grant
        state, _ = take(state, GroupsBuffered(ids(grant)), BatchTrained(at, ids(grant)))
        if at % 2 == 0:
            state, _ = take(state, VersionPublished(at))
    return state


def due(state):
    """Returns the versions that are being evaluated, or have to be."""
    return [one.version for one in state.evaluations]


def test_the_first_explorer_that_asks_evaluates_and_others_go_on():
    state = trained_to(started(SETTINGS), 4)
    state, first = lease(state, explorer=2)
    assert first == GrantEvaluation(4)
    state, second = lease(state, explorer=1)
    assert isinstance(second, GrantLeases)
    state, beside = lease(state, explorer=2, evaluating=1)
    assert isinstance(beside, GrantLeases), "it rolls out meanwhile"
    assert due(state) == [4]
    state, after = lease(state, explorer=2)
    assert not isinstance(after, GrantEvaluation)
    assert not due(state)


def test_between_two_evaluations_are_so_many_steps_and_the_last_step_has_its_own():
    state, found = started(SETTINGS), []
    for step in range(2, 13, 2):
        state = trained_to(state, step)
        found += due(state)
        state = dataclasses.replace(state, evaluations=())
    assert found == [4, 8]


@pytest.mark.parametrize(("interval", "expected"), [(3, [6, 9]), (5, [5, 10])])
def test_a_step_that_is_not_published_is_made_up_for_by_the_next_one(interval, expected):
    settings = dataclasses.replace(SETTINGS, schedule=resolve("asynchronous", interval=interval))
    state, found = started(settings), []
    for version in range(interval, 12, interval):
        state, _ = take(state, VersionPublished(version))
        found += due(state)
        state = dataclasses.replace(state, evaluations=())
    assert found == expected


def test_the_evaluation_of_an_explorer_that_dies_goes_to_another():
    state = trained_to(started(SETTINGS), 4)
    state, _ = lease(state, explorer=2)
    state, _ = take(state, ExplorerDied(1))
    assert isinstance(lease(state, explorer=1)[1], GrantLeases), "that was another explorer"
    state, _ = take(state, ExplorerDied(2))
    assert lease(state, explorer=1)[1] == GrantEvaluation(4)


def test_an_evaluation_that_nobody_has_begun_is_left_out_once_the_next_one_is_due():
    state, before = take(started(SETTINGS), VersionPublished(4))
    assert not before
    state, (left_out,) = take(state, VersionPublished(8))
    why = "that of version 8 was due before an explorer had room for it"
    assert left_out == LeaveOutEvaluation(4, why)
    assert lease(state)[1] == GrantEvaluation(8)


def test_evaluations_wait_in_an_explorer_in_order_as_far_as_it_has_room():
    settings = dataclasses.replace(SETTINGS, steps=24, evaluations_waiting=1)
    state, _ = take(started(settings), VersionPublished(4))
    state, first = lease(state)
    state, _ = take(state, VersionPublished(8))
    state, second = lease(state, evaluating=1)
    assert (first, second) == (GrantEvaluation(4), GrantEvaluation(8))
    state, _ = take(state, VersionPublished(12))
    state, none = lease(state, evaluating=2)
    assert not isinstance(none, GrantEvaluation), "there is room for one that waits"
    assert due(state) == [4, 8, 12]
    state, third = lease(state, evaluating=1)
    assert third == GrantEvaluation(12)
    assert due(state) == [8, 12], "the first has ended"
    assert not due(lease(state)[0])


def test_an_evaluation_in_progress_is_not_left_out():
    state, _ = take(started(SETTINGS), VersionPublished(4))
    state, _ = lease(state)
    state, commands = take(state, VersionPublished(8))
    assert not commands
    assert due(state) == [4, 8]


def test_the_end_of_a_run_leaves_out_what_nobody_has_begun():
    state, _ = take(started(SETTINGS), VersionPublished(4))
    assert end(state)[1] == (LeaveOutEvaluation(4, "the run ended before an explorer began it"),)
    begun, _ = lease(state)
    assert end(begun)[1] == ()


def test_a_request_that_comes_again_gets_the_evaluation_that_it_got():
    state, _ = take(started(SETTINGS), VersionPublished(4))
    state, first = lease(state, request=7)
    again_state, again = lease(state, request=7)
    assert (first, again) == (GrantEvaluation(4),) * 2
    assert again_state == state


def test_requests_without_evaluations_change_nothing_that_a_journal_would_keep():
    state, _ = take(started(SETTINGS), StopRequested("because"))
    assert lease(state)[0] is state


def test_without_evaluations_by_explorers_none_is_granted():
    state = started(dataclasses.replace(SETTINGS, evaluate_every_steps=0))
    state, _ = take(state, VersionPublished(4))
    assert isinstance(lease(state)[1], GrantLeases)
