"""The master's handling of groups that teach nothing, and of groups that a step leaves out."""

import numpy as np
import pytest

from rl_sync.algorithms.screening import NO_SPREAD, TOO_EASY, Screening
from rl_sync.messages.events import (
    LEFT_OUT,
    Admit,
    BatchTrained,
    GroupsBuffered,
    LeaseRequested,
    Record,
    Started,
    Ticked,
    VersionPublished,
)
from rl_sync.roles.master import transition
from rl_sync.roles.master.group_admission import filled
from rl_sync.schedule import resolve
from tests.roles.master.mastering import (
    SAME,
    SPREAD,
    accounted,
    assignments,
    ids,
    judged,
    lease,
    needing_spread,
    settings_of,
    started,
    take,
)


@pytest.mark.parametrize("mode", ["synchronous", "one_step_off_policy", "asynchronous"])
def test_groups_that_teach_nothing_give_way_to_other_prompts_of_the_same_step(mode):
    state = started(settings_of(resolve(mode), screening=needing_spread(3)))
    state, grant = lease(state)
    state, (admit, record) = take(state, judged(grant, SPREAD, SAME, SPREAD, SAME))
    assert admit == Admit((0, 2))
    assert (record.event, record.reason) == ("dropped", NO_SPREAD)
    assert [one.ordinal for one in record.leases] == [1, 3]
    state, _ = take(state, GroupsBuffered(admit.lease_ids))
    state, again = lease(state)
    assert assignments(again)[:2] == [(1, 1, 1), (3, 1, 1)]
    if mode != "asynchronous":
        assert len(again.leases) == 2
        assert (again.step, again.version, again.exactly) == (1, 0, True)
    assert accounted(state) == state.leased


def test_a_request_that_comes_again_gets_what_is_left_of_its_grant():
    state = started(settings_of(resolve("asynchronous"), screening=needing_spread(3)))
    request = LeaseRequested(1, 0.0, request=5)
    state, (grant, *_) = take(state, request)
    assert take(state, request)[1] == [grant]
    state, _ = take(state, judged(grant, SPREAD, SAME, SPREAD, SAME))
    (again,) = take(state, request)[1]
    assert ids(again) == (ids(grant)[0], ids(grant)[2])
    state, _ = take(state, GroupsBuffered(ids(again)))
    assert take(state, request)[1][0].leases[:2] != grant.leases[:2]


def test_after_the_last_attempt_a_group_is_taken_as_it_is_and_counted():
    state = started(settings_of(resolve("synchronous"), groups=1, screening=needing_spread(2)))
    state, first = lease(state)
    state, _ = take(state, judged(first, SAME))
    state, second = lease(state)
    state, (admit, record) = take(state, judged(second, SAME))
    assert admit == Admit(ids(second))
    assert record == Record("out of attempts", second.leases, NO_SPREAD)
    assert (state.out_of_attempts, state.dropped) == (1, {NO_SPREAD: 1})
    state, _ = take(state, GroupsBuffered(ids(second)), BatchTrained(1, ids(second)))
    assert (state.trained, accounted(state)) == (1, state.leased)


def test_groups_that_are_too_easy_are_replaced_and_those_of_a_lease_that_is_over_are_not():
    run = settings_of(resolve("asynchronous"), screening=Screening(False, 0.2, 0.8, 5))
    state = started(run)
    state, grant = lease(state)
    state, _ = take(state, Ticked(100.0))
    state, (admit,) = take(state, judged(grant, SAME, SAME, SAME, SAME))
    assert admit == Admit(ids(grant))
    state, again = lease(state, now=100.0)
    state, (admit, record) = take(state, judged(again, SPREAD, SAME, SPREAD, SPREAD))
    assert (record.reason, len(admit.lease_ids)) == (TOO_EASY, 3)
    assert state.dropped == {"lease expired": 4, TOO_EASY: 1}


def test_a_lease_that_expires_keeps_its_prompt_and_so_does_a_run_that_goes_on():
    state = started(settings_of(resolve("synchronous"), groups=2, screening=needing_spread(9)))
    state, first = lease(state)
    state, _ = take(state, judged(first, SAME, SPREAD))
    state, second = lease(state)
    assert assignments(second) == [(0, 1, 1)]
    assert transition.position(state).again == ((0, 1), (1, 0))
    state, _ = take(state, Ticked(100.0))
    assert assignments(lease(state)[1])[0] == (0, 2, 1)
    stands = transition.position(state)
    assert stands.again == ((0, 1), (1, 0))
    resumed, _ = take(transition.MasterState(state.settings), Started(stands), VersionPublished(0))
    assert assignments(lease(resumed)[1]) == [(0, 1, 1), (1, 1, 0)]


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_what_a_step_leaves_out_is_dropped_and_not_generated_again(mode):
    state = started(settings_of(resolve(mode)))
    state, grant = lease(state)
    one, two, three, four = ids(grant)
    state, _ = take(state, GroupsBuffered(ids(grant)))
    state, commands = take(state, BatchTrained(1, (one, four), (two, three)), VersionPublished(1))
    assert commands == [
        Record("trained", commands[0].leases, "step 1"),
        Record("dropped", commands[1].leases, LEFT_OUT),
    ]
    assert [one.ordinal for one in commands[1].leases] == [1, 2]
    assert (state.trained, state.dropped) == (2, {LEFT_OUT: 2})
    assert accounted(state) == state.leased
    assert transition.position(state).again == ()
    state, again = lease(state)
    assert assignments(again) == [(ordinal, 0, 0) for ordinal in range(4, 8)]
    with pytest.raises(ValueError, match="leases are over"):
        take(state, BatchTrained(2, ids(again), (two,)))


@pytest.mark.parametrize("reward", [0.1, 0.7, 99.9, 1e6 / 3])
@pytest.mark.parametrize("size", [4, 7, 8, 16])
def test_a_completion_that_could_not_be_scored_adds_no_spread_to_equal_rewards(size, reward):
    scores = np.full(size, reward, np.float32)
    scores[1] = np.nan
    rewards, _ = filled(scores, with_baselines=False)
    np.testing.assert_array_equal(rewards, np.float32(reward))
