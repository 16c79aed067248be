"""Deadlines of groups: room for others beside a long group, and batches that leave it its place."""

import json

import pytest

from rl_sync.messages.events import (
    LOST_IN_BUFFER,
    BatchRequested,
    BatchTrained,
    ExplorerDied,
    GrantBatch,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
    GroupsRefused,
    HoldBack,
    Record,
    Ticked,
    VersionPublished,
)
from rl_sync.roles.master import transition
from rl_sync.roles.master.journal import lasting, state_form, state_of
from rl_sync.schedule import resolve
from tests.roles.master.mastering import (
    SAME,
    batch_of,
    ids,
    lease,
    needing_spread,
    settings_of,
    started,
    take,
)


def streaming(max_staleness, steps=9, **more):
    """Returns the state of a run whose batches are of 4 groups."""
    schedule = resolve("asynchronous", max_staleness=max_staleness)
    return started(settings_of(schedule, steps, carries_over=True, **more))


def begin(state, count=100, version=None):
    """Begins up to so many groups; returns their leases."""
    state, grant = lease(state, unfinished=1, room=count, version=version)
    return state, list(ids(grant))


def train(state, at_hand):
    """Trains on the next batch from the groups at hand, and publishes."""
    state, batch = batch_of(state, at_hand)
    assert batch
    step = state.trained_steps + 1
    return take(state, BatchTrained(step, batch), VersionPublished(step))[0], batch


def buffered(state, lease_ids):
    return take(state, GroupsBuffered(tuple(lease_ids)))[0]


def test_one_long_group_takes_one_place_and_others_begin_beside_it():
    state = streaming(2)
    state, first = begin(state)
    assert len(first) == 3 * 4, "groups of version 0 are trained by step 3"
    long, *others = first
    state = buffered(state, others)
    for _ in range(2):
        state, batch = train(state, others)
        others = [one for one in others if one not in batch]
        state, more = begin(state)
        assert len(more) == 4, "each step makes room for as many as it trained on"
        state, none = begin(state)
        assert not none
        state = buffered(state, more)
        others += more
    # Step 3 is the last one that may train on it, so the trainer waits, with two batches at hand.
    assert len(others) >= 8
    assert batch_of(state, others)[1] == ()
    state, batch = train(state, [*others, long])
    assert long in batch


def test_a_batch_is_of_the_oldest_versions_whatever_came_first():
    state = streaming(2)
    state, first = begin(state, 6)
    state, batch = train(buffered(state, first), first)
    assert batch == tuple(first[:4])
    state, second = begin(state, 4)
    state = buffered(state, second)
    assert batch_of(state, [*second, *first[4:]])[1] == (*first[4:], *second[:2])


def test_a_batch_leaves_others_under_way_enough_places():
    """Two batches of version 0 are left for step 2 and step 3 if step 1 takes three of them."""
    state = streaming(2)
    state, first = begin(state)
    state, batch = train(buffered(state, first[:4]), first[:4])
    assert len(batch) == 4
    state, second = begin(state)
    state = buffered(state, second)
    # Eight groups of version 0 are under way, and steps 2 and 3 train on eight groups.
    assert len(second) == 4
    assert batch_of(state, second)[1] == ()
    state = buffered(state, first[4:7])
    assert batch_of(state, [*second, *first[4:7]])[1] == ()
    state = buffered(state, first[7:8])
    assert batch_of(state, [*second, *first[4:8]])[1] == tuple(first[4:8])


@pytest.mark.parametrize("fate", ["expires", "dies", "is replaced"])
def test_the_wait_for_a_due_group_ends_with_its_lease(fate):
    state = streaming(0, screening=needing_spread(2))
    state, first = begin(state)
    state = buffered(state, first[:3])
    assert len(first) == 4
    due = first[3]
    assert batch_of(state, first[:3])[1] == ()
    match fate:
        case "expires":
            state, _ = take(state, Ticked(11.0))
        case "dies":
            state, _ = take(state, ExplorerDied(1))
        case "is replaced":
            state, _ = take(state, GroupsJudged(((due, SAME),)))
    state, again = begin(state)
    assert len(again) == 1, "its place is free"
    state = buffered(state, again)
    assert batch_of(state, [*first[:3], *again])[1] == (*first[:3], *again)


def test_a_group_that_is_leased_again_has_a_later_deadline():
    """It has the newest version, so the batch at hand leaves it a place."""
    state = streaming(1)
    state, first = begin(state, 5)
    long, *others = first
    state, _ = train(buffered(state, others), others)
    state, second = begin(state, 4)
    state = buffered(state, second)
    assert batch_of(state, second)[1] == (), "the long group is due in step 2"
    state, _ = take(state, Ticked(11.0))
    state, again = begin(state, 1)
    assert state.live[again[0]].version == 1
    assert batch_of(state, second)[1] == tuple(second)
    assert long not in state.live


def test_an_older_version_has_room_only_before_its_own_deadline():
    state = streaming(2)
    state, first = begin(state, 8)
    state, _ = train(buffered(state, first[:4]), first[:4])
    state, newest = begin(state, 3)
    # Version 0 is trained by step 3: two steps are left, and four places of theirs are taken. But
    # version 1 has one more step, and all its other places are free.
    state, older = begin(state, version=0)
    assert len(older) == 4
    assert {state.live[one].version for one in newest} == {1}
    assert {state.live[one].version for one in older} == {0}
    state, more = begin(state, version=0)
    assert {state.live[one].version for one in more} == {1}
    assert len(more) == 1


def test_an_older_version_takes_no_place_that_newer_groups_need():
    state = streaming(2)
    state, first = begin(state, 8)
    state, _ = train(buffered(state, first[:4]), first[:4])
    state, newest = begin(state)
    assert len(newest) == 8, "steps 2, 3 and 4 train on all of them"
    # Version 0 would have places before its own deadline.
    assert begin(state, version=0)[1] == []


def test_a_batch_that_was_taken_leaves_no_places_behind_before_its_step_is_reported():
    state = streaming(2)
    state, first = begin(state, 4)
    state, _ = train(buffered(state, first), first)
    state, newest = begin(state, 4)
    state = buffered(state, newest)
    state, batch = batch_of(state, newest)
    assert set(batch) == set(newest)
    # Of the steps before the deadline of version 0, only step 3 is free.
    state, older = begin(state, version=0)
    assert {state.live[one].version for one in older} == {0}
    assert len(older) == 4


def test_the_next_step_takes_no_group_of_a_batch_whose_step_is_not_reported():
    state = streaming(2)
    state, first = begin(state, 9)
    state = buffered(state, first)
    state, batch = batch_of(state, first)
    state, (answer,) = take(state, BatchRequested(2, tuple(first)))
    assert answer == GrantBatch(tuple(first[4:8]), over=tuple(first[:4]))
    # The trainer was started anew: it asks for the first step again, and has not used its batch.
    state, (answer,) = take(state, BatchRequested(1, tuple(first)))
    assert answer == GrantBatch(batch)


def test_a_master_that_is_restarted_knows_the_batches_that_were_taken():
    state = streaming(2)
    state, first = begin(state, 9)
    before = buffered(state, first)
    request = BatchRequested(1, tuple(first))
    after, commands = take(before, request)
    assert lasting(before, after, request, commands) == request
    assert {one.taken for one in after.live.values()} == {0, 1}
    again = state_of(json.loads(json.dumps(state_form(after))), after.settings)
    assert again.live == after.live
    # A trainer that waits asks again and again: that is not written.
    waits = BatchRequested(2, tuple(first[:6]))
    assert lasting(after, take(after, waits)[0], waits, ()) is None


def test_a_batch_that_loses_a_group_is_not_taken_any_more():
    """As when the trainer's machine dies with it: explorers must generate another group."""
    state = streaming(2)
    state, first = begin(state, 9)
    state, batch = batch_of(buffered(state, first), first)
    state, _ = take(state, GroupsRefused(batch[:1], LOST_IN_BUFFER))
    assert {state.live[one].taken for one in batch[1:]} == {0}
    assert (state.taken_steps, len(state.again)) == (0, 1)


def test_groups_at_hand_whose_leases_are_over_are_named_and_not_trained_on():
    state = streaming(1)
    state, first = begin(state, 5)
    state, _ = take(state, Ticked(11.0))
    state, second = begin(state, 4)
    state, (record, answer) = take(state, BatchRequested(1, (first[0], *second)))
    assert answer == GrantBatch(tuple(second), over=(first[0],))
    assert isinstance(record, Record)
    assert (record.event, [one.lease_id for one in record.leases]) == ("buffered", second)


def test_a_step_that_is_over_has_no_batch():
    state = streaming(1)
    state, first = begin(state, 4)
    state, _ = train(buffered(state, first), first)
    with pytest.raises(ValueError, match="trainer step 1 requested after step 1"):
        take(state, BatchRequested(1, ()))


def test_what_cannot_be_in_time_any_more_is_not_waited_for():
    """As after a change of the bound: eight groups are due in step 1."""
    state = streaming(1)
    state, first = begin(state)
    assert len(first) == 8
    schedule = resolve("asynchronous", max_staleness=0)
    smaller = settings_of(schedule, 9, carries_over=True)
    state = transition.MasterState(smaller, newest=0, live=state.live, leased=state.leased)
    state = buffered(state, first[:7])
    assert batch_of(state, first[:7])[1] == (), "one group that is due may still come"
    state = buffered(state, first[7:])
    assert batch_of(state, first)[1] == tuple(first[:4])


def test_an_explorer_without_anything_in_flight_is_held_back_while_there_is_no_room():
    state = streaming(0)
    state, first = begin(state)
    assert len(first) == 4
    assert lease(state, room=4)[1] == HoldBack("synchronization")
    assert lease(state, unfinished=1, room=4)[1] == GrantLeases(1, 0, False, ())
