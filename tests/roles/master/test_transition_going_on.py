"""The master's decisions on completions whose explorer was lost: which go on, and with which bound.

The groups of a lease that is given again go on with the attempt of the lease before, so that the
draws are the same; groups that begin anew draw otherwise under latest pulls.
"""

import dataclasses

import pytest

from rl_sync.messages.events import (
    LEFT_OUT,
    Assignment,
    BatchTrained,
    ExplorerDied,
    GroupsBuffered,
    GroupsKept,
    GroupsRefused,
    RunContinued,
    Ticked,
    VersionPublished,
)
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


def described(grant):
    return [(one.ordinal, one.attempt, one.version, one.is_kept) for one in grant.leases]


@pytest.mark.parametrize("end", [ExplorerDied(1), Ticked(10.5), RunContinued()])
def test_with_exact_pulls_the_groups_that_are_kept_go_on(end):
    state, grant = lease(started(settings_of(resolve("synchronous"))))
    first, second, *_ = ids(grant)
    state, _ = take(state, GroupsKept((first, second)), end)
    assert state.kept == {0, 1}
    state, again = lease(state, now=11.0)
    assert described(again)[:2] == [(0, 0, 0, True), (1, 0, 0, True)]
    assert described(again)[2:] == [(2, 1, 0, False), (3, 1, 0, False)]
    assert not {*ids(again)} & {*ids(grant)}
    assert accounted(state) == state.leased == 8
    state, _ = take(state, ExplorerDied(1))
    assert state.kept == {0, 1}, "they may be lost once more before any more tokens are told"


def test_work_of_a_kept_version_that_the_step_does_not_use_begins_anew():
    state = started(settings_of(resolve("synchronous")))
    again = Assignment(1, 3, begun=5), Assignment(2, 3, begun=0)
    state = dataclasses.replace(state, again=again)
    assert described(lease(state)[1])[1:3] == [(1, 4, 0, False), (2, 3, 0, True)]


def test_what_is_in_the_buffer_or_was_replaced_is_not_kept():
    schedule = resolve("asynchronous", max_staleness=1)
    state, grant = lease(started(settings_of(schedule, screening=needing_spread(3))))
    state, _ = take(state, GroupsKept(ids(grant)))
    state, _ = take(state, judged(grant, SPREAD, SPREAD, SAME, SPREAD))
    state, _ = take(state, GroupsBuffered(ids(grant)[:2]))
    assert state.kept == {3}
    state, _ = take(state, GroupsRefused(ids(grant)[:1], "too stale"), ExplorerDied(1))
    assert state.kept == {3}
    state, again = lease(state)
    assert assignments(again)[:3] == [(3, 0, 0), (0, 1, 0), (2, 1, 1)]


def test_with_latest_pulls_a_group_goes_on_if_its_older_version_still_has_a_place():
    """B = 4 and S = 1: groups of version 0 are trained by step 2, those of version 1 by step 3."""
    state = started(settings_of(resolve("asynchronous", max_staleness=1), groups_per_lease=6))
    state, grant = lease(state)
    assert len(grant.leases) == 6
    state, _ = take(
        state,
        GroupsBuffered(ids(grant)[:4]),
        BatchTrained(1, ids(grant)[:4]),
        VersionPublished(1),
        GroupsKept(ids(grant)[4:]),
        ExplorerDied(1),
    )
    state, again = lease(state, explorer=2)
    assert described(again)[:3] == [(4, 0, 0, True), (5, 0, 0, True), (6, 0, 1, False)]
    # Version 2 is there, but the groups of version 0 are due: they begin anew.
    state, _ = take(state, ExplorerDied(2))
    state, more = lease(state, explorer=2, version=1)
    assert described(more)[:2] == [(4, 0, 0, True), (5, 0, 0, True)]
    filled = ids(more)[2:6]
    state, _ = take(state, GroupsBuffered(filled), BatchTrained(2, filled), VersionPublished(2))
    state, _ = take(state, ExplorerDied(2))
    state, last = lease(state, explorer=2)
    assert described(last)[:2] == [(4, 1, 2, False), (5, 1, 2, False)]
    assert state.kept == frozenset()


def test_groups_that_go_on_take_only_the_places_that_their_version_has():
    """With deadlines: B = 4, S = 1. Six groups of version 0 are kept when step 1 is over."""
    schedule = resolve("asynchronous", max_staleness=1)
    state = started(settings_of(schedule, groups_per_lease=12, carries_over=True))
    state, grant = lease(state)
    assert len(grant.leases) == 8
    state, _ = take(state, GroupsKept(ids(grant)[1:]), GroupsBuffered(ids(grant)[:1]))
    state, _ = take(state, ExplorerDied(1), BatchTrained(1, (), ids(grant)[:1]))
    assert LEFT_OUT in state.dropped
    state, _ = take(state, VersionPublished(1))
    state, again = lease(state)
    kept = [one.version for one in again.leases if one.is_kept]
    # Step 2 is the last for version 0, and has four places.
    assert kept == [0, 0, 0, 0]
    assert [one.version for one in again.leases if not one.is_kept] == [1] * 4
    assert [one.ordinal for one in again.leases] == [1, 2, 3, 4, 5, 6, 7, 8]
