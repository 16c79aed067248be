"""Decisions of the master, without a process: leases, admission, the ledger."""

import dataclasses

import pytest

from rl_sync.messages.events import (
    TOO_STALE,
    BatchTrained,
    ExplorerDied,
    ExplorersSeen,
    Finish,
    GrantLeases,
    GroupsBuffered,
    GroupsRefused,
    HoldBack,
    Position,
    Record,
    Started,
    StopRequested,
    Ticked,
    VersionPublished,
)
from rl_sync.roles.master import transition
from rl_sync.schedule import resolve
from tests.roles.master.mastering import (
    accounted,
    assignments,
    ids,
    lease,
    settings_of,
    started,
    take,
)


def test_nothing_is_leased_before_the_first_weights():
    state = transition.MasterState(settings_of(resolve("synchronous")))
    assert lease(state)[1] == HoldBack("the first weights")


def test_exact_leases_name_the_step_and_the_version_of_the_formula():
    schedule = resolve("custom", interval=2, offset=1)
    state = started(settings_of(schedule))
    for step in range(1, 7):
        version = schedule.exact_version(step)
        state, _ = take(state, VersionPublished(version))
        state, grant = lease(state)
        assert (grant.step, grant.version, grant.exactly) == (step, version, True)
        assert [one.ordinal for one in grant.leases] == list(range(4 * step - 4, 4 * step))


def test_an_explorer_does_not_hold_work_of_a_version_that_a_lost_group_is_needed_for():
    """It would wait for the version, and the trainer for the group."""
    state = started(settings_of(resolve("synchronous")))
    state, first = lease(state)
    state, _ = take(state, GroupsBuffered(ids(first)))
    state, answer = lease(state)
    assert answer == HoldBack("synchronization")
    state, _ = take(state, GroupsRefused(ids(first)[2:3], "lost with the buffer"))
    state, again = lease(state)
    assert (again.step, again.version, [one.ordinal for one in again.leases]) == (1, 0, [2])


def test_a_version_that_is_published_again_changes_nothing():
    state = started(settings_of(resolve("asynchronous")))
    state, _ = take(state, VersionPublished(1), VersionPublished(2))
    assert take(state, VersionPublished(1)) == (state, [])


def test_explorers_in_lockstep_share_a_step_without_overlap():
    state = started(settings_of(resolve("synchronous"), groups=5, explorers=2, groups_per_lease=3))
    state, first = lease(state, explorer=1)
    state, second = lease(state, explorer=2)
    assert [one.ordinal for one in first.leases] == [0, 2, 4]
    assert [one.ordinal for one in second.leases] == [1, 3]
    assert first.step == second.step == 1


def test_latest_leases_stop_at_the_staleness_bound_and_go_on_after_a_publication():
    state = started(settings_of(resolve("asynchronous", max_staleness=1)))
    state, first = lease(state)
    state, second = lease(state)
    assert (first.step, second.step) == (1, 2)
    assert lease(state)[1] == HoldBack("synchronization")
    state, _ = take(state, GroupsBuffered(ids(first)), BatchTrained(1, ids(first)))
    assert lease(state)[1] == HoldBack("synchronization")
    state, _ = take(state, VersionPublished(1))
    state, third = lease(state)
    assert (third.version, third.exactly) == (1, False)


def test_a_dropped_group_makes_room_and_its_prompt_is_leased_again_first():
    state = started(settings_of(resolve("asynchronous", max_staleness=0)))
    state, grant = lease(state)
    stale = ids(grant)[1:3]
    state, commands = take(state, GroupsBuffered(ids(grant)), GroupsRefused(stale, TOO_STALE))
    assert commands[-1].event == "dropped"
    assert commands[-1].reason == TOO_STALE
    state, again = lease(state)
    # Two of the batch's four places are free, and the bound leaves room for no more than those.
    assert [(one.ordinal, one.attempt) for one in again.leases] == [(1, 1), (2, 1)]
    assert lease(state)[1] == HoldBack("synchronization")


def test_a_group_of_which_both_explorer_and_trainer_tell_is_buffered_once():
    state = started(settings_of(resolve("asynchronous")))
    state, grant = lease(state)
    one, *others = ids(grant)
    state, commands = take(
        state, GroupsBuffered((one,)), GroupsBuffered(ids(grant)), GroupsBuffered(ids(grant))
    )
    assert [tuple(lease.lease_id for lease in record.leases) for record in commands] == [
        (one,),
        tuple(others),
    ]
    assert state.buffered == 4


def test_an_explorer_gets_as_many_new_groups_as_it_has_finished():
    state = started(settings_of(resolve("asynchronous"), carries_over=True))
    state, first = lease(state)
    assert len(first.leases) == 4
    state, _ = take(state, GroupsBuffered(ids(first)[:3]))
    state, second = lease(state, unfinished=1)
    assert [one.ordinal for one in second.leases] == [4, 5, 6]
    state, none = lease(state, unfinished=4)
    assert none == GrantLeases(2, 0, False, ())
    assert (state.leased, len(state.live)) == (7, 7)


def test_an_explorer_gets_as_many_groups_as_it_has_room_for_however_many_are_in_flight():
    state = started(settings_of(resolve("asynchronous"), carries_over=True))
    state, first = lease(state, room=2)
    state, second = lease(state, unfinished=2, room=5)
    assert [len(grant.leases) for grant in (first, second)] == [2, 5]
    state, none = lease(state, unfinished=7, room=0)
    assert none == GrantLeases(2, 0, False, ())
    state, rest = lease(state, unfinished=7, room=100)
    assert len(rest.leases) == 3 * 4 - 7, "groups of version 0 are fresh enough for three steps"


@pytest.mark.parametrize("trained", [1, 6])
def test_an_explorer_that_has_something_unfinished_is_never_held_back(trained):
    """It waits neither for synchronization nor at the end of training: others may wait for it."""
    run = settings_of(resolve("asynchronous", max_staleness=0), trained, carries_over=True)
    state = started(run)
    state, grant = lease(state)
    state, _ = take(state, GroupsBuffered(ids(grant)[:3]))
    assert isinstance(lease(state, explorer=2)[1], HoldBack)
    assert lease(state, unfinished=1)[1] == GrantLeases(1, 0, False, ())


def test_what_is_unfinished_when_the_run_ends_is_dropped():
    state = started(settings_of(resolve("asynchronous"), carries_over=True))
    state, grant = lease(state)
    state, _ = take(state, GroupsBuffered(ids(grant)[:3]), StopRequested("interrupted"))
    assert lease(state, unfinished=1)[1] == Finish("interrupted")
    state, (record,) = transition.end(state)
    assert record == Record("dropped", grant.leases[3:], "interrupted")


def test_what_a_dead_explorer_had_under_way_is_leased_again_at_once():
    state = started(settings_of(resolve("synchronous"), explorers=2))
    state, first = lease(state, explorer=1, now=0.0)
    state, second = lease(state, explorer=2, now=0.0)
    state, commands = take(state, GroupsBuffered(ids(second)[:1]), ExplorerDied(2))
    assert commands[-1] == Record("dropped", second.leases[1:], "its explorer died")
    state, again = lease(state, explorer=2, now=1.0)
    assert [(one.ordinal, one.attempt) for one in again.leases] == [(3, 1)]
    assert set(ids(first)) <= set(state.live)


def test_leases_of_a_silent_explorer_expire_and_signs_of_life_renew_them():
    state = started(settings_of(resolve("synchronous")))
    state, grant = lease(state, now=0.0)
    state, commands = take(state, ExplorersSeen({1: 8.0}), Ticked(12.0))
    assert commands == []
    state, commands = take(state, GroupsBuffered(ids(grant)[:1]), Ticked(19.0))
    assert [one.ordinal for one in commands[-1].leases] == [1, 2, 3]
    assert commands[-1].reason == "lease expired"
    state, again = lease(state, now=20.0)
    assert [(one.ordinal, one.attempt) for one in again.leases] == [(1, 1), (2, 1), (3, 1)]
    assert again.step == grant.step


def test_consuming_a_group_whose_lease_is_over_contradicts_the_ledger():
    state = started(settings_of(resolve("synchronous")))
    state, grant = lease(state)
    state, _ = take(state, GroupsBuffered(ids(grant)), BatchTrained(1, ids(grant)))
    with pytest.raises(ValueError, match="leases are over"):
        take(state, BatchTrained(2, ids(grant)))
    with pytest.raises(ValueError, match="step 3 reported after step 1"):
        take(state, BatchTrained(3, ()))


def test_a_stop_finishes_the_explorers_and_accounts_for_what_they_held():
    state = started(settings_of(resolve("one_step_off_policy")))
    state, first = lease(state)
    state, second = lease(state)
    state, _ = take(state, GroupsBuffered(ids(first)), StopRequested("interrupted"))
    assert lease(state)[1] == Finish("interrupted")
    state, (record,) = transition.end(state)
    assert record == Record("dropped", second.leases, "interrupted")
    assert state.buffered == 4
    assert accounted(state) == state.leased == 8
    assert transition.position(state).again == tuple((ordinal, 0) for ordinal in range(8))


def test_a_run_that_goes_on_counts_from_its_step_and_leases_what_was_not_trained():
    state = transition.MasterState(settings_of(resolve("asynchronous")))
    state, _ = take(state, Started(Position(3, 20, ((13, 0), (17, 2)), 40)), VersionPublished(3))
    state, grant = lease(state)
    assert assignments(grant) == [(13, 1, 0), (17, 1, 2), (20, 0, 0), (21, 0, 0)]
    assert min(ids(grant)) == 40
    assert grant.version == 3
    exact = transition.MasterState(settings_of(resolve("one_step_off_policy")))
    exact, _ = take(exact, Started(Position(3, 12, (), 12)), VersionPublished(3))
    for step, version in [(4, 3), (5, 3), (6, 4)]:
        exact, _ = take(exact, VersionPublished(version))
        exact, grant = lease(exact)
        assert (grant.step, grant.version) == (step, version)


def test_a_group_that_is_trained_on_again_is_trained_once_and_never_dropped():
    schedule = resolve("custom", 1, 0, 3, "latest")
    state = started(dataclasses.replace(settings_of(schedule), times_sampled=2))
    state, grant = lease(state)
    one, two, *_ = ids(grant)
    state, _ = take(state, GroupsBuffered(ids(grant)), BatchTrained(1, ids(grant), kept=(one, two)))
    assert (state.trained, state.buffered, set(state.live)) == (2, 2, {one, two})
    assert transition.position(state).again == ()
    state, records = take(state, GroupsRefused((one,), "too stale"))
    assert (state.trained, state.dropped, records) == (3, {}, [])
    state, _ = take(state, BatchTrained(2, (two,)), VersionPublished(2))
    assert (state.trained, dict(state.live)) == (4, {})
    assert accounted(state) == state.leased == 4


def test_a_group_has_room_in_the_bound_for_all_steps_that_may_train_on_it():
    """Bound 3: steps 1 to 4 may train on version 0, so two batches of two steps each."""
    schedule = resolve("custom", 1, 0, 3, "latest")
    run = dataclasses.replace(settings_of(schedule, groups_per_lease=9), times_sampled=2)
    state, grant = lease(started(run))
    assert len(grant.leases) == 8
    assert isinstance(lease(state, explorer=2)[1], HoldBack)
    batch = ids(grant)[:4]
    state, _ = take(state, BatchTrained(1, batch, kept=batch), VersionPublished(1))
    assert len(lease(state)[1].leases) == 2
