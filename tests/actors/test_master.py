"""The master's decisions, without a process: leases, admission, the ledger."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.actors import master
from rl_sync.actors.events import (
    TOO_STALE,
    BatchTrained,
    ExplorerSeen,
    Finish,
    GrantLeases,
    GroupsBuffered,
    GroupsRefused,
    HoldBack,
    LeaseRequested,
    MasterSettings,
    Position,
    Record,
    Started,
    StopRequested,
    Ticked,
    VersionPublished,
)
from rl_sync.schedule import resolve

EXACT_MODES = ("synchronous", "one_step_off_policy")


def settings_of(schedule, steps=6, groups=4, explorers=1, groups_per_lease=4, carries_over=False):
    return MasterSettings(schedule, steps, groups, explorers, groups_per_lease, 10.0, carries_over)


def take(state, *events):
    """Applies events in turn; returns the last state and every command."""
    commands = []
    for event in events:
        state, new = master.transition(state, event)
        commands += new
    return state, commands


def started(run_settings):
    state = master.MasterState(run_settings)
    return take(state, Started(Position(0, 0, (), 0)), VersionPublished(0))[0]


def lease(state, explorer=1, now=0.0, unfinished=0):
    state, (answer, *_) = master.transition(state, LeaseRequested(explorer, now, unfinished))
    return state, answer


def ids(grant):
    return tuple(one.lease_id for one in grant.leases)


def accounted(state):
    return state.trained + len(state.live) + sum(state.dropped.values())


def test_nothing_is_leased_before_the_first_weights():
    state = master.MasterState(settings_of(resolve("synchronous")))
    assert lease(state)[1] == HoldBack("the first weights")


def test_exact_leases_name_the_step_and_the_version_of_the_formula():
    schedule = resolve("custom", interval=2, offset=1)
    state = started(settings_of(schedule))
    for step in range(1, 7):
        state, grant = lease(state)
        assert (grant.step, grant.version, grant.exactly) == (
            step,
            schedule.exact_version(step),
            True,
        )
        assert [one.ordinal for one in grant.leases] == list(range(4 * step - 4, 4 * step))


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


@pytest.mark.parametrize("trained", [1, 6])
def test_an_explorer_that_has_something_unfinished_is_never_held_back(trained):
    """Neither for synchronization nor for the end of training: the trainer may wait for it."""
    run = settings_of(resolve("asynchronous", max_staleness=0), trained, carries_over=True)
    state = started(run)
    state, grant = lease(state)
    state, _ = take(state, GroupsBuffered(ids(grant)[:3]))
    assert isinstance(lease(state, explorer=2)[1], HoldBack)
    assert lease(state, unfinished=1)[1] == GrantLeases(1, 0, False, ())


def test_a_group_that_is_carried_over_is_waited_for_before_it_gets_too_stale():
    """Bound 1: a group of version 0 is of use until step 2, so only two batches come before it."""
    state = started(settings_of(resolve("asynchronous", max_staleness=1), carries_over=True))
    state, first = lease(state)
    long = first.leases[0]
    state, _ = take(state, GroupsBuffered(ids(first)[1:]))
    state, second = lease(state, unfinished=1)
    state, _ = take(state, GroupsBuffered(ids(second)))
    state, third = lease(state, unfinished=1)
    assert [len(grant.leases) for grant in (first, second, third)] == [4, 3, 1]
    state, _ = take(state, GroupsBuffered(ids(third)))
    batch = (*ids(first)[1:], *ids(second)[:1])
    state, _ = take(state, BatchTrained(1, batch), VersionPublished(1))
    assert lease(state, unfinished=1)[1] == GrantLeases(2, 1, False, ())
    assert isinstance(lease(state, explorer=2)[1], HoldBack)
    state, _ = take(state, GroupsBuffered((long.lease_id,)))
    state, fourth = lease(state)
    assert len(fourth.leases) == 4


def test_what_is_unfinished_when_the_run_ends_is_dropped():
    state = started(settings_of(resolve("asynchronous"), carries_over=True))
    state, grant = lease(state)
    state, _ = take(state, GroupsBuffered(ids(grant)[:3]), StopRequested("interrupted"))
    assert lease(state, unfinished=1)[1] == Finish("interrupted")
    state, (record,) = master.end(state)
    assert record == Record("dropped", grant.leases[3:], "interrupted")


def test_leases_of_a_silent_explorer_expire_and_signs_of_life_renew_them():
    state = started(settings_of(resolve("synchronous")))
    state, grant = lease(state, now=0.0)
    state, commands = take(state, ExplorerSeen(1, 8.0), Ticked(12.0))
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
    state, (record,) = master.end(state)
    assert record == Record("dropped", second.leases, "interrupted")
    assert state.buffered == 4
    assert accounted(state) == state.leased == 8
    assert master.position(state).again == tuple(range(8))


def test_a_run_that_goes_on_counts_from_its_step_and_leases_what_was_not_trained():
    state = master.MasterState(settings_of(resolve("asynchronous")))
    state, _ = take(state, Started(Position(3, 20, (13, 17), 40)), VersionPublished(3))
    state, grant = lease(state)
    assert [(one.ordinal, one.attempt) for one in grant.leases] == [
        (13, 1),
        (17, 1),
        (20, 0),
        (21, 0),
    ]
    assert min(ids(grant)) == 40
    assert grant.version == 3
    exact = master.MasterState(settings_of(resolve("one_step_off_policy")))
    exact, _ = take(exact, Started(Position(3, 12, (), 12)), VersionPublished(3))
    for step, version in [(4, 3), (5, 3), (6, 4)]:
        exact, grant = lease(exact)
        assert (grant.step, grant.version) == (step, version)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["synchronous", "one_step_off_policy", "asynchronous", "multi_explorer"]),
    explorers=st.integers(1, 3),
    bound=st.integers(0, 4),
    seed=st.integers(0, 10_000),
)
def test_any_order_of_events_ends_with_every_lease_accounted_for(mode, explorers, bound, seed):
    """Explorers at random paces, some silent for ever: the sum holds, and the bound is kept."""
    draw = random.Random(seed)
    schedule = resolve(mode)
    state = started(
        settings_of(schedule, steps=5, groups=3, explorers=explorers, groups_per_lease=2)
    )
    held, buffer, now, trained_ordinals = {}, [], 0.0, []
    for _ in range(4000):
        if state.trained_steps == 5:
            break
        now += 1.0
        state, _ = take(state, Ticked(now))
        explorer = draw.randint(1, explorers)
        if explorer in held:
            grant = held[explorer]
            if draw.random() < 0.05:
                del held[explorer]  # It dies; its leases are left to expire.
            elif not grant.exactly or grant.version <= state.newest:
                buffer += [(one, grant.version) for one in grant.leases]
                state, _ = take(state, GroupsBuffered(ids(grant)))
                del held[explorer]
        else:
            state, answer = lease(state, explorer, now)
            if isinstance(answer, GrantLeases):
                held[explorer] = answer
        step = state.trained_steps + 1
        buffer = [pair for pair in buffer if pair[0].lease_id in state.live]
        stale = tuple(one.lease_id for one, v in buffer if not schedule.accepts(step, v))
        assert not stale or schedule.pull == "latest"
        state, _ = take(state, GroupsRefused(stale, TOO_STALE))
        usable = [
            one
            for one, _ in buffer
            if one.lease_id in state.live
            and (schedule.pull == "latest" or state.settings.step_of(one.ordinal) == step)
        ]
        if len(usable) >= 3 and draw.random() < 0.5:
            trained_ordinals += [one.ordinal for one in usable[:3]]
            state, _ = take(state, BatchTrained(step, tuple(one.lease_id for one in usable[:3])))
            if schedule.publishes_after(step):
                state, _ = take(state, VersionPublished(step))
        assert accounted(state) == state.leased
    assert state.trained_steps == 5, "the run came to a halt"
    assert len(set(trained_ordinals)) == 15, "a prompt was trained twice"
    state, _ = master.end(state)
    assert accounted(state) == state.leased


@settings(max_examples=60, deadline=None)
@given(
    explorers=st.integers(1, 3),
    interval=st.integers(1, 2),
    slack=st.integers(0, 2),
    budget=st.integers(1, 12),
    silent=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_carried_over_groups_come_in_time_and_nobody_waits_for_ever(
    explorers, interval, slack, budget, silent, seed
):
    """Long and short groups, rollouts of a few tokens, and explorers that fall silent for a time.

    Whatever the trainer takes first in, first out is fresh enough, unless its lease is over.
    """
    draw = random.Random(seed)
    schedule = resolve("custom", interval, 0, interval - 1 + slack, "latest")
    run = settings_of(schedule, 8, 4, explorers, 3, carries_over=True)
    state = started(run)
    held = {explorer: {} for explorer in range(1, explorers + 1)}
    asleep = dict.fromkeys(held, 0.0)
    buffer, oldest, now, carried = [], {}, 0.0, 0
    for _ in range(20_000):
        if state.finished:
            break
        now += 1.0
        awake = [explorer for explorer in held if asleep[explorer] <= now]
        state, _ = take(state, Ticked(now), *(ExplorerSeen(one, now) for one in awake))
        explorer = draw.choice(list(held))
        if explorer in awake and silent and draw.random() < 0.03:
            asleep[explorer] = now + 30
        elif explorer in awake:
            mine = held[explorer]
            state, answer = lease(state, explorer, now, len(mine))
            assert not (mine and isinstance(answer, HoldBack))
            if isinstance(answer, GrantLeases):
                for one in answer.leases:
                    mine[one.lease_id] = draw.choice([1, 2, 3, 40])
                    oldest[one.lease_id] = state.newest
                assert 0 < len(mine) <= 3
                drawn = 0
                while mine and drawn < budget:
                    for lease_id in mine:
                        mine[lease_id] -= 1
                        drawn += 1
                    whole = tuple(i for i, left in mine.items() if left == 0)
                    buffer += whole
                    state, _ = take(state, GroupsBuffered(whole))
                    held[explorer] = mine = {i: left for i, left in mine.items() if left}
                carried += len(mine)
        buffer = [lease_id for lease_id in buffer if lease_id in state.live]
        if len(buffer) >= 4 and draw.random() < 0.7:
            step, batch = state.trained_steps + 1, tuple(buffer[:4])
            assert all(schedule.accepts(step, oldest[lease_id]) for lease_id in batch)
            state, _ = take(state, BatchTrained(step, batch))
            if schedule.publishes_after(step):
                state, _ = take(state, VersionPublished(step))
        assert accounted(state) == state.leased
    assert state.finished, "the run came to a halt"
    state, _ = master.end(state)
    assert accounted(state) == state.leased
    assert silent or state.leased == state.trained == 32, "something was generated in vain"
    assert carried or budget > 3
