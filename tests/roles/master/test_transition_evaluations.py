"""The master hands the evaluation of a version to one explorer."""

import dataclasses

import pytest

from rl_sync.messages.events import (
    BatchTrained,
    ExplorerDied,
    GrantEvaluation,
    GrantLeases,
    GroupsBuffered,
    VersionPublished,
)
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


def test_the_first_explorer_that_asks_evaluates_and_others_go_on():
    state = trained_to(started(SETTINGS), 4)
    state, first = lease(state, explorer=2)
    assert first == GrantEvaluation(4, 4)
    state, second = lease(state, explorer=1)
    assert isinstance(second, GrantLeases)
    state, after = lease(state, explorer=2)
    assert not isinstance(after, GrantEvaluation)
    assert state.evaluation is None


def test_between_two_evaluations_are_so_many_steps_and_the_last_step_has_its_own():
    state, due = started(SETTINGS), []
    for step in range(2, 13, 2):
        state = trained_to(state, step)
        if state.evaluation is not None:
            due.append(state.evaluation.version)
            state = dataclasses.replace(state, evaluation=None)
    assert due == [4, 8]


@pytest.mark.parametrize(("interval", "due"), [(3, [6, 9]), (5, [5, 10])])
def test_a_step_that_is_not_published_is_made_up_for_by_the_next_one(interval, due):
    settings = dataclasses.replace(SETTINGS, schedule=resolve("asynchronous", interval=interval))
    state, found = started(settings), []
    for version in range(interval, 12, interval):
        state, _ = take(state, VersionPublished(version))
        found += [state.evaluation.version] if state.evaluation else []
        state = dataclasses.replace(state, evaluation=None)
    assert found == due


def test_the_evaluation_of_an_explorer_that_dies_goes_to_another():
    state = trained_to(started(SETTINGS), 4)
    state, _ = lease(state, explorer=2)
    state, _ = take(state, ExplorerDied(1))
    assert isinstance(lease(state, explorer=1)[1], GrantLeases), "that was another explorer"
    state, _ = take(state, ExplorerDied(2))
    assert lease(state, explorer=1)[1] == GrantEvaluation(4, 4)


def test_an_evaluation_that_nobody_has_begun_is_replaced_by_a_newer_one():
    state = started(SETTINGS)
    for version in (4, 8):
        state, _ = take(state, VersionPublished(version))
    assert lease(state)[1] == GrantEvaluation(8, 8)


def test_without_evaluations_by_explorers_none_is_granted():
    state = started(dataclasses.replace(SETTINGS, evaluate_every_steps=0))
    state, _ = take(state, VersionPublished(4))
    assert isinstance(lease(state)[1], GrantLeases)
