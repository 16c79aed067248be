"""The master's handling of groups in whose episodes environments failed."""

import dataclasses

import pytest

from rl_sync.algorithms.screening import NO_SPREAD
from rl_sync.ending import Ending, Fault
from rl_sync.messages.events import (
    Admit,
    ExplorerDied,
    FailedEpisode,
    GroupsBuffered,
    HoldBack,
    Record,
)
from rl_sync.roles.master.group_admission import EPISODE_FAILED, failed_episodes
from rl_sync.schedule import resolve
from tests.roles.master.mastering import (
    SAME,
    SPREAD,
    accounted,
    assignments,
    failed,
    ids,
    judged,
    lease,
    needing_spread,
    settings_of,
    started,
    take,
)

FAILURE = "environment failure"


@pytest.fixture
def run():
    return settings_of(resolve("asynchronous", max_staleness=0), groups=2, max_leases=3)


def test_a_group_that_lost_an_episode_is_dropped_and_its_prompt_is_leased_again(run):
    state, grant = lease(started(run))
    one, two = ids(grant)
    lost = failed(two, reason="time-out")
    state, (admit, told, dropped) = take(state, judged(grant, SPREAD, SPREAD, failed=[lost]))
    assert admit == Admit((one,))
    assert told == Record(EPISODE_FAILED, grant.leases[1:], "time-out", lost)
    assert dropped == Record("dropped", grant.leases[1:], "time-out")
    state, _ = take(state, GroupsBuffered((one,)))
    state, again = lease(state)
    assert assignments(again) == [(1, 1, 0)], "it is the same prompt, with other draws"
    assert isinstance(lease(state)[1], HoldBack)
    assert (state.failed, state.dropped) == ({"time-out": 1}, {"time-out": 1})
    assert accounted(state) == state.leased == 3


def test_a_prompt_is_leased_so_many_times_and_then_taken_as_it_is(run):
    state = started(run)
    for number in range(3):
        state, grant = lease(state)
        lost = [failed(ids(grant)[0])]
        rewards = [SPREAD] * len(grant.leases)
        state, (admit, *records) = take(state, judged(grant, *rewards, failed=lost))
        assert records[0].event == EPISODE_FAILED
        assert [one.event for one in records[1:]] == ["dropped"] * (number < 2)
        assert (ids(grant)[0] in admit.lease_ids) is (number == 2)
        state, _ = take(state, GroupsBuffered(admit.lease_ids))
    assert assignments(grant) == [(0, 2, 0)]
    assert (state.failed, state.dropped) == ({FAILURE: 3}, {FAILURE: 2})


def test_a_lease_that_is_lost_otherwise_is_none_of_those_times(run):
    state = started(dataclasses.replace(run, max_leases=2))
    for _ in range(3):
        state, grant = lease(state)
        state, _ = take(state, ExplorerDied(1))
    state, grant = lease(state)
    assert grant.leases[0].attempt == 3
    state, (admit, *_) = take(state, judged(grant, SPREAD, SPREAD, failed=[failed(ids(grant)[0])]))
    assert admit == Admit(ids(grant)[1:])


@pytest.mark.parametrize("mode", ["synchronous", "one_step_off_policy"])
def test_under_exact_pulls_a_group_is_taken_as_it_is(mode):
    state, grant = lease(started(settings_of(resolve(mode), max_leases=3)))
    lost = [failed(lease_id) for lease_id in ids(grant)]
    state, (admit, *records) = take(state, judged(grant, *[SPREAD] * 4, failed=lost))
    assert admit == Admit(ids(grant))
    assert [one.event for one in records] == [EPISODE_FAILED] * 4
    assert (state.failed, state.dropped) == ({FAILURE: 4}, {})


def test_an_episode_that_began_again_costs_its_group_nothing(run):
    state, grant = lease(started(run))
    again = [failed(ids(grant)[0], sample=1, attempt=i, is_lost=False) for i in range(2)]
    state, (admit, *records) = take(state, judged(grant, SPREAD, SPREAD, failed=again))
    assert admit == Admit(ids(grant))
    assert [one.episode for one in records] == again
    assert state.failed == {FAILURE: 2}


def test_a_failure_in_a_lease_that_is_over_is_recorded_and_changes_nothing(run):
    state, grant = lease(started(run))
    state, _ = take(state, ExplorerDied(1))
    before, lost = state.again, [failed(lease_id) for lease_id in ids(grant)]
    state, (admit, *records) = take(state, judged(grant, SPREAD, SPREAD, failed=lost))
    assert admit == Admit(ids(grant))
    assert records == [Record(EPISODE_FAILED, (), FAILURE, one) for one in lost]
    assert state.again == before


def test_a_prompt_that_takes_the_place_of_another_has_all_its_leases(run):
    run = dataclasses.replace(run, max_leases=2, screening=needing_spread(3))
    state, events = started(run), []
    for fails in (True, False, True, True):
        state, grant = lease(state)
        lost = [failed(ids(grant)[0])] * fails
        rewards = [SAME, *[SPREAD] * (len(grant.leases) - 1)]
        state, (admit, *records) = take(state, judged(grant, *rewards, failed=lost))
        state, _ = take(state, GroupsBuffered(admit.lease_ids))
        events += [(one.leases[0].replacement, one.reason) for one in records if not one.episode]
    # The first prompt fails, then teaches nothing; the second one fails in both of its leases, and
    # what is left of it is screened like any group.
    assert events == [(0, FAILURE), (0, NO_SPREAD), (1, FAILURE), (1, NO_SPREAD)]
    assert assignments(lease(state)[1]) == [(0, 4, 2)]


def test_failures_do_not_count_groups_as_out_of_attempts_where_none_is_replaced(run):
    state = started(dataclasses.replace(run, max_leases=1, screening=needing_spread(1)))
    state, grant = lease(state)
    lost = [failed(ids(grant)[0])]
    state, (admit, *records) = take(state, judged(grant, SAME, SAME, failed=lost))
    assert admit == Admit(ids(grant))
    assert [one.event for one in records] == [EPISODE_FAILED]
    assert state.out_of_attempts == 0


def test_every_failed_beginning_of_an_episode_is_told_and_whether_it_was_the_last():
    """In row 1 an episode began again, in row 2 it was lost."""
    fine = Ending({"won": 1.0}, {}, "done", "", 1)
    crashed, late = Fault("environment failure", "no board"), Fault("time-out", "too late")
    again = fine._replace(faults=(crashed,))
    lost = Ending({}, {}, "time-out", "too late", 0, faults=(crashed, late))
    assert [*failed_episodes(7, 107, (fine, again, lost, None))] == [
        FailedEpisode(7, 107, 1, 0, "environment failure", "no board", is_lost=False),
        FailedEpisode(7, 107, 2, 0, "environment failure", "no board", is_lost=False),
        FailedEpisode(7, 107, 2, 1, "time-out", "too late", is_lost=True),
    ]
