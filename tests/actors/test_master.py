"""The master's decisions, without a process: leases, admission, the ledger."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.actors import master
from rl_sync.actors.events import (
    LEFT_OUT,
    TOO_STALE,
    Admit,
    BatchTrained,
    ExplorerSeen,
    Finish,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
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
from rl_sync.algorithms.screening import NO_SCREENING, NO_SPREAD, TOO_EASY, Screening
from rl_sync.schedule import resolve

EXACT_MODES = ("synchronous", "one_step_off_policy")


SPREAD, SAME = (0.0, 1.0), (1.0, 1.0)


def settings_of(
    schedule,
    steps=6,
    groups=4,
    explorers=1,
    groups_per_lease=4,
    carries_over=False,
    screening=NO_SCREENING,
):
    return MasterSettings(
        schedule, steps, groups, explorers, groups_per_lease, 10.0, carries_over, screening
    )


def needing_spread(max_attempts):
    return Screening(True, -1.0, 2.0, max_attempts)


def places(grant):
    return [(one.ordinal, one.attempt, one.replacement) for one in grant.leases]


def judged(grant, *rewards):
    return GroupsJudged(tuple(zip(ids(grant), rewards, strict=True)))


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
    assert master.position(state).again == tuple((ordinal, 0) for ordinal in range(8))


def test_a_run_that_goes_on_counts_from_its_step_and_leases_what_was_not_trained():
    state = master.MasterState(settings_of(resolve("asynchronous")))
    state, _ = take(state, Started(Position(3, 20, ((13, 0), (17, 2)), 40)), VersionPublished(3))
    state, grant = lease(state)
    assert places(grant) == [(13, 1, 0), (17, 1, 2), (20, 0, 0), (21, 0, 0)]
    assert min(ids(grant)) == 40
    assert grant.version == 3
    exact = master.MasterState(settings_of(resolve("one_step_off_policy")))
    exact, _ = take(exact, Started(Position(3, 12, (), 12)), VersionPublished(3))
    for step, version in [(4, 3), (5, 3), (6, 4)]:
        exact, grant = lease(exact)
        assert (grant.step, grant.version) == (step, version)


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
    assert places(again)[:2] == [(1, 1, 1), (3, 1, 1)]
    if mode != "asynchronous":
        assert len(again.leases) == 2
        assert (again.step, again.version, again.exactly) == (1, 0, True)
    assert accounted(state) == state.leased


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
    assert places(second) == [(0, 1, 1)]
    assert master.position(state).again == ((0, 1), (1, 0))
    state, _ = take(state, Ticked(100.0))
    assert places(lease(state)[1])[0] == (0, 2, 1)
    stands = master.position(state)
    assert stands.again == ((0, 1), (1, 0))
    resumed, _ = take(master.MasterState(state.settings), Started(stands), VersionPublished(0))
    assert places(lease(resumed)[1]) == [(0, 1, 1), (1, 1, 0)]


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
    assert master.position(state).again == ()
    state, again = lease(state)
    assert places(again) == [(ordinal, 0, 0) for ordinal in range(4, 8)]
    with pytest.raises(ValueError, match="leases are over"):
        take(state, BatchTrained(2, ids(again), (two,)))


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["synchronous", "one_step_off_policy", "asynchronous", "multi_explorer"]),
    explorers=st.integers(1, 3),
    max_attempts=st.integers(1, 4),
    more=st.integers(0, 2),
    seed=st.integers(0, 10_000),
)
def test_any_order_of_events_ends_with_every_lease_accounted_for(
    mode, explorers, max_attempts, more, seed
):
    """Explorers at random paces, some silent for ever: the sum holds, and the bound is kept.

    Which prompt is trained on depends on what prompts teach alone, and not on the order of events.
    Each step trains on 3 groups of those that were generated for it.
    """
    draw = random.Random(seed)
    schedule = resolve(mode)
    run = settings_of(
        schedule, 5, 3 + more, explorers, groups_per_lease=2, screening=needing_spread(max_attempts)
    )
    state = started(run)
    held, buffer, now, trained = {}, [], 0.0, []
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
                rewards = [teaches(seed, one.ordinal, one.replacement) for one in grant.leases]
                state, (admit, *_) = take(state, judged(grant, *rewards))
                admitted = [one for one in grant.leases if one.lease_id in admit.lease_ids]
                buffer += [(one, grant.version) for one in admitted]
                state, _ = take(state, GroupsBuffered(admit.lease_ids))
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
        usable = usable[: 3 + more]
        if len(usable) == 3 + more and draw.random() < 0.5:
            draw.shuffle(usable)
            trained += usable[:3]
            chosen = [one.lease_id for one in usable]
            state, _ = take(state, BatchTrained(step, tuple(chosen[:3]), tuple(chosen[3:])))
            if schedule.publishes_after(step):
                state, _ = take(state, VersionPublished(step))
        assert accounted(state) == state.leased
    assert state.trained_steps == 5, "the run came to a halt"
    assert len({one.ordinal for one in trained}) == 15, "a prompt was trained twice"
    for one in trained:
        tried = range(max_attempts)
        taught = [i for i in tried if teaches(seed, one.ordinal, i) == SPREAD]
        assert one.replacement == (taught[0] if taught else max_attempts - 1)
    state, _ = master.end(state)
    assert accounted(state) == state.leased


def teaches(seed, ordinal, replacement):
    """The rewards of a group, which half of the time have no spread."""
    return random.Random(f"{seed}/{ordinal}/{replacement}").choice([SPREAD, SAME])


@settings(max_examples=60, deadline=None)
@given(
    explorers=st.integers(1, 3),
    interval=st.integers(1, 2),
    slack=st.integers(0, 2),
    budget=st.integers(1, 12),
    silent=st.booleans(),
    max_attempts=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
def test_carried_over_groups_come_in_time_and_nobody_waits_for_ever(
    explorers, interval, slack, budget, silent, max_attempts, seed
):
    """Long and short groups, rollouts of a few tokens, and explorers that fall silent for a time.

    Half of the groups teach nothing and are replaced.

    Whatever the trainer takes first in, first out is fresh enough, unless its lease is over.
    """
    draw = random.Random(seed)
    schedule = resolve("custom", interval, 0, interval - 1 + slack, "latest")
    run = settings_of(
        schedule, 8, 4, explorers, 3, carries_over=True, screening=needing_spread(max_attempts)
    )
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
                    whole = [i for i, left in mine.items() if left == 0]
                    told = tuple((i, draw.choice([SPREAD, SAME])) for i in whole)
                    state, (admit, *_) = take(state, GroupsJudged(told))
                    whole = admit.lease_ids
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
    assert state.trained == 32
    in_vain = {why: n for why, n in state.dropped.items() if why != NO_SPREAD}
    assert silent or not in_vain, "something was generated in vain"
    assert carried or budget > 3
