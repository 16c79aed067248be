"""The master under any order of events: every lease is accounted for, and nobody waits forever."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.algorithms.screening import NO_SPREAD
from rl_sync.messages.events import (
    RUN_ENDED,
    TOO_STALE,
    BatchTrained,
    ExplorersSeen,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
    GroupsRefused,
    HoldBack,
    Ticked,
    VersionPublished,
)
from rl_sync.roles.master import transition
from rl_sync.schedule import resolve
from tests.roles.master.mastering import (
    SAME,
    SPREAD,
    accounted,
    batch_of,
    failed,
    ids,
    judged,
    lease,
    needing_spread,
    settings_of,
    started,
    take,
)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["synchronous", "one_step_off_policy", "asynchronous", "multi_explorer"]),
    explorers=st.integers(1, 3),
    max_attempts=st.integers(1, 4),
    max_leases=st.integers(1, 3),
    more=st.integers(0, 2),
    seed=st.integers(0, 10_000),
)
def test_any_order_of_events_ends_with_every_lease_accounted_for(
    mode, explorers, max_attempts, max_leases, more, seed
):
    """Explorers have random paces, and some fall silent forever: the sum and the bound hold.

    The trained prompts depend only on what prompts teach, and not on the order of events, nor on
    environments, which fail in some groups. Each step trains on 3 of the groups that were generated
    for it.
    """
    draw = random.Random(seed)
    schedule = resolve(mode)
    run = settings_of(
        schedule,
        5,
        3 + more,
        explorers,
        groups_per_lease=2,
        screening=needing_spread(max_attempts),
        max_leases=max_leases,
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
                lost = [failed(i) for i in ids(grant) if draw.random() < 0.2]
                state, (admit, *_) = take(state, judged(grant, *rewards, failed=lost))
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
    state, _ = transition.end(state)
    assert accounted(state) == state.leased


def teaches(seed, ordinal, replacement):
    """Returns the rewards of a group, which half of the time have no spread."""
    return random.Random(f"{seed}/{ordinal}/{replacement}").choice([SPREAD, SAME])


@pytest.mark.gate
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
    """Groups are long and short, rollouts have few tokens, explorers fall silent for a time.

    Half of the groups teach nothing and are replaced.

    Each group that the trainer takes is fresh enough.
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
        state, _ = take(state, Ticked(now), *(ExplorersSeen({one: now}) for one in awake))
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
        state, batch = batch_of(state, buffer) if draw.random() < 0.7 else (state, ())
        if batch:
            step = state.trained_steps + 1
            assert all(schedule.accepts(step, oldest[lease_id]) for lease_id in batch)
            state, _ = take(state, BatchTrained(step, batch))
            if schedule.publishes_after(step):
                state, _ = take(state, VersionPublished(step))
        assert accounted(state) == state.leased
    assert state.finished, "the run came to a halt"
    state, _ = transition.end(state)
    assert accounted(state) == state.leased
    assert state.trained == 32
    in_vain = {why: n for why, n in state.dropped.items() if why != NO_SPREAD}
    assert silent or not in_vain, "something was generated in vain"
    assert carried or budget > 3


@pytest.mark.gate
@settings(max_examples=60, deadline=None)
@given(
    explorers=st.integers(1, 3),
    interval=st.integers(1, 2),
    slack=st.integers(0, 2),
    slots=st.integers(1, 5),
    silent=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_streamed_groups_come_in_time_and_nobody_waits_for_ever(
    explorers, interval, slack, slots, silent, seed
):
    """Explorers take a group for each free slot; judgements come in any order, some of them late.

    Each group that the trainer takes is fresh enough.
    """
    draw = random.Random(seed)
    schedule = resolve("custom", interval, 0, interval - 1 + slack, "latest")
    state = started(settings_of(schedule, 8, 4, explorers, slots, carries_over=True))
    held = {explorer: {} for explorer in range(1, explorers + 1)}
    judging = {explorer: {} for explorer in held}
    asleep = dict.fromkeys(held, 0.0)
    buffer, oldest, now = [], {}, 0.0
    for _ in range(40_000):
        if state.finished:
            break
        now += 0.25
        awake = [explorer for explorer in held if asleep[explorer] <= now]
        state, _ = take(state, Ticked(now), *(ExplorersSeen({one: now}) for one in awake))
        explorer = draw.choice(list(held))
        if explorer in awake and silent and draw.random() < 0.01:
            asleep[explorer] = now + 30
        elif explorer in awake:
            mine, judged_later = held[explorer], judging[explorer]
            if len(mine) < slots:
                state, answer = lease(state, explorer, now, len(mine), slots - len(mine))
                assert not (mine and isinstance(answer, HoldBack))
                for one in getattr(answer, "leases", ()):
                    mine[one.lease_id] = draw.choice([1, 2, 3, 40])
                    oldest[one.lease_id] = state.newest
                assert len(mine) <= slots
            for waiting in (mine, judged_later):
                for lease_id in waiting:
                    waiting[lease_id] -= 1
            for lease_id in [i for i, left in mine.items() if left == 0]:
                del mine[lease_id]
                judged_later[lease_id] = draw.choice([1, 5, 30])
            for lease_id in [i for i, left in judged_later.items() if left == 0]:
                del judged_later[lease_id]
                buffer.append(lease_id)
                state, _ = take(state, GroupsBuffered((lease_id,)))
        buffer = [lease_id for lease_id in buffer if lease_id in state.live]
        state, batch = batch_of(state, buffer) if draw.random() < 0.7 else (state, ())
        if batch:
            step = state.trained_steps + 1
            assert all(schedule.accepts(step, oldest[lease_id]) for lease_id in batch)
            state, _ = take(state, BatchTrained(step, batch))
            if schedule.publishes_after(step):
                state, _ = take(state, VersionPublished(step))
        assert accounted(state) == state.leased
    assert state.finished, "the run came to a halt"
    state, _ = transition.end(state)
    assert (state.trained, accounted(state)) == (32, state.leased)
    in_vain = {why: n for why, n in state.dropped.items() if why != RUN_ENDED}
    assert silent or not in_vain, "something was generated in vain"
