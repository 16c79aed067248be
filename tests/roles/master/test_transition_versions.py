"""Leases for explorers to which newer weights still travel: for what they have, if it will do."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.messages.events import (
    FORMED_ANEW,
    BatchTrained,
    ExplorersSeen,
    Finish,
    GrantEvaluation,
    GrantLeases,
    GroupsBuffered,
    GroupsRefused,
    HoldBack,
    RunContinued,
    Ticked,
    VersionPublished,
)
from rl_sync.roles.master import transition
from rl_sync.schedule import resolve
from tests.roles.master.mastering import accounted, batch_of, ids, lease, settings_of, started, take


def after_steps(state, steps):
    """Trains on a batch of new groups in each step, and publishes."""
    for step in range(state.trained_steps + 1, state.trained_steps + steps + 1):
        state, grant = lease(state, explorer=9)
        state, _ = take(state, GroupsBuffered(ids(grant)), BatchTrained(step, ids(grant)))
        state, _ = take(state, VersionPublished(step))
    return state


def test_an_explorer_begins_with_what_it_has_while_newer_weights_travel():
    state = after_steps(started(settings_of(resolve("asynchronous", max_staleness=2), 9)), 2)
    state, grant = lease(state, version=1)
    assert (grant.version, grant.step, len(grant.leases)) == (1, 3, 4)
    assert {one.version for one in state.live.values()} == {1}


def test_an_explorer_gets_the_newest_version_once_the_bound_leaves_no_room_for_what_it_has():
    state = after_steps(started(settings_of(resolve("asynchronous", max_staleness=2), 9)), 2)
    granted = []
    while isinstance((answer := lease(state, version=1))[1], GrantLeases):
        state, grant = answer
        granted.append((grant.step, grant.version))
    # Step 4 is the last one for version 1, and step 5 for version 2.
    assert granted == [(3, 1), (4, 1), (5, 2)]
    assert answer[1] == HoldBack("synchronization")


def test_what_an_explorer_has_may_be_of_any_age():
    settings = settings_of(resolve("asynchronous", max_staleness=2), 9)
    state = after_steps(started(settings), 3)
    for version, granted in ((0, 3), (1, 1), (2, 2), (3, 3), (7, 3), (None, 3)):
        assert lease(state, version=version)[1].version == granted


def test_an_explorer_without_room_goes_on_with_what_it_has():
    """It does not wait for newer weights, which it would begin nothing with."""
    run = settings_of(resolve("asynchronous", max_staleness=2), 9, carries_over=True)
    state, _ = lease(started(run))
    state, _ = take(state, VersionPublished(1))
    for full in ({"unfinished": 4}, {"unfinished": 4, "room": 0}):
        after, answer = lease(state, version=0, **full)
        assert (answer.version, answer.leases) == (0, ())
        assert after == state
        assert lease(state, version=1, **full)[1].version == 1
        assert lease(state, **full)[1].version == 1


def test_an_explorer_with_unfinished_groups_goes_on_with_what_it_has_if_nothing_may_begin():
    state = started(settings_of(resolve("asynchronous", max_staleness=1), 9, carries_over=True))
    state, first = lease(state, explorer=2)
    state, second = lease(state, explorer=1)
    assert (len(first.leases), len(second.leases)) == (4, 4)
    state, _ = take(state, GroupsBuffered(ids(first)), BatchTrained(1, ids(first)))
    state, _ = take(state, VersionPublished(1))
    state, third = lease(state, explorer=3)
    assert (third.version, len(third.leases)) == (1, 4)
    state, _ = take(state, GroupsBuffered(ids(second)[:2]))
    # Step 2 needs the groups of version 0, and step 3 those of version 1.
    answer = lease(state, unfinished=2, version=0)[1]
    assert (answer.version, answer.leases) == (0, ())


def test_an_exact_lease_ignores_what_an_explorer_has():
    state = started(settings_of(resolve("synchronous"), 9))
    state, grant = lease(state, version=0)
    state, _ = take(state, GroupsBuffered(ids(grant)), BatchTrained(1, ids(grant)))
    state, _ = take(state, VersionPublished(1))
    assert lease(state, version=0)[1].version == 1


class Explorer:
    """An explorer to which versions travel for some time, each after the one before it."""

    def __init__(self, draw, delay):
        self._draw, self._delay = draw, delay
        self.version = self.at_hand = None
        self._travels: tuple[int, float] | None = None
        self.waits_for: GrantLeases | None = None
        self.groups: dict[int, int] = {}

    def move_on(self, newest, now):
        if self._travels and self._travels[1] <= now:
            self.at_hand, self._travels = self._travels[0], None
        if self._travels is None and (self.at_hand is None or self.at_hand < newest):
            self._travels = newest, now + self._draw.uniform(0, self._delay)

    def request(self):
        """Returns the version that it names, as the explorer's loop does."""
        return None if self.version is None else max(self.version, self.at_hand)

    def begin(self, grant):
        """Begins leases, if it has the version; it takes the newest that it has."""
        if self.version is None or self.version < grant.version:
            if self.at_hand is None or self.at_hand < grant.version:
                self.waits_for = grant
                return
            self.version = self.at_hand
        self.waits_for = None
        for one in grant.leases:
            self.groups[one.lease_id] = self._draw.choice([1, 2, 3, 9])


@pytest.mark.gate
@settings(max_examples=100, deadline=None)
@given(
    explorers=st.integers(1, 3),
    interval=st.integers(1, 2),
    slack=st.integers(0, 3),
    slots=st.integers(1, 5),
    delay=st.sampled_from([0, 3, 20, 100]),
    seed=st.integers(0, 10_000),
)
def test_groups_of_explorers_with_older_weights_come_in_time(
    explorers, interval, slack, slots, delay, seed
):
    """No lease can become too stale, however long weights travel, and nobody waits for ever."""
    draw = random.Random(seed)
    schedule = resolve("custom", interval, 0, interval - 1 + slack, "latest")
    state = started(settings_of(schedule, 8, 4, explorers, slots, carries_over=True))
    held = {number: Explorer(draw, delay) for number in range(1, explorers + 1)}
    begun_with, buffer, now = {}, [], 0.0
    for _ in range(40_000):
        if state.finished:
            break
        now += 0.25
        state, _ = take(state, Ticked(now), *(ExplorersSeen({one: now}) for one in held))
        number = draw.choice([*held])
        explorer = held[number]
        explorer.move_on(state.newest, now)
        if explorer.waits_for:
            explorer.begin(explorer.waits_for)
        elif len(explorer.groups) < slots or draw.random() < 0.2:
            has = explorer.request()
            mine = len(explorer.groups)
            state, answer = lease(state, number, now, mine, slots - mine, has)
            assert not (mine and isinstance(answer, HoldBack))
            if isinstance(answer, GrantLeases):
                assert answer.version in (has, state.newest)
                for one in answer.leases:
                    assert one.version == answer.version
                    begun_with[one.lease_id] = answer.version
                assert not answer.leases or schedule.may_start(answer.step, answer.version)
                # It only waits for newer weights if it begins something with them.
                assert answer.leases or has is None or answer.version <= has
                explorer.begin(answer)
        if not explorer.waits_for:
            for lease_id in explorer.groups:
                explorer.groups[lease_id] -= 1
            whole = [lease_id for lease_id, left in explorer.groups.items() if left <= 0]
            for lease_id in whole:
                del explorer.groups[lease_id]
            buffer += whole
            state, _ = take(state, GroupsBuffered(tuple(whole)))
        state, batch = batch_of(state, buffer) if draw.random() < 0.7 else (state, ())
        if batch:
            step = state.trained_steps + 1
            buffer = [lease_id for lease_id in buffer if lease_id not in batch]
            assert all(schedule.accepts(step, begun_with[lease_id]) for lease_id in batch)
            state, _ = take(state, BatchTrained(step, batch))
            if schedule.publishes_after(step):
                state, _ = take(state, VersionPublished(step))
        assert accounted(state) == state.leased
    assert state.finished, "the run came to a halt"
    state, _ = transition.end(state)
    assert (state.trained, accounted(state)) == (32, state.leased)


def test_one_explorer_never_generates_in_vain_however_long_weights_travel():
    """Groups are judged in the order of their leases, and each rollout is a lease."""
    assert sum(begun_with_older_weights(random.Random(seed)) for seed in range(30)) > 30


def begun_with_older_weights(draw):
    """Runs to the end; returns the number of rollouts that began while newer weights travelled."""
    schedule = resolve("asynchronous", max_staleness=draw.randint(0, 3))
    state, has, buffer, older = started(settings_of(schedule, 12)), 0, [], 0
    while not state.finished:
        has = draw.randint(has, state.newest)
        state, answer = lease(state, version=has)
        if isinstance(answer, GrantLeases):
            assert answer.version in (has, state.newest)
            assert schedule.may_start(answer.step, answer.version)
            has = answer.version
            older += has < state.newest
            buffer += [(one.lease_id, has) for one in answer.leases]
            state, _ = take(state, GroupsBuffered(ids(answer)))
        else:
            assert len(buffer) >= 4, "the run came to a halt"
        if len(buffer) >= 4 and draw.random() < 0.6:
            step, batch, buffer = state.trained_steps + 1, buffer[:4], buffer[4:]
            assert all(schedule.accepts(step, version) for _, version in batch)
            chosen = tuple(lease_id for lease_id, _ in batch)
            state, _ = take(state, BatchTrained(step, chosen), VersionPublished(step))
    assert isinstance(lease(state)[1], Finish)
    assert (state.trained, state.dropped) == (48, {})
    return older


def test_an_evaluation_is_of_its_version_whatever_an_explorer_has():
    run = settings_of(resolve("asynchronous"), 9)
    run = type(run)(**{**vars(run), "evaluate_every_steps": 1})
    state, _ = take(started(run), VersionPublished(1))
    assert lease(state, version=0)[1] == GrantEvaluation(1)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_cluster_that_is_formed_anew_gets_no_work_of_versions_that_are_made_again(is_resumed):
    """A lost group of step 2 needs an explorer that does not wait for version 2."""
    state = started(settings_of(resolve("synchronous"), 9))
    state, first = lease(state)
    state, _ = take(state, GroupsBuffered(ids(first)), BatchTrained(1, ids(first)))
    state, second = lease(take(state, VersionPublished(1))[0])
    state, _ = take(state, GroupsBuffered(ids(second)), VersionPublished(2))  # Not reported yet.
    lost = GroupsRefused(ids(second), FORMED_ANEW)
    state, _ = take(state, RunContinued(drops_buffered=True) if is_resumed else lost)
    assert lease(state)[1] == HoldBack("the first weights")
    state, _ = take(state, VersionPublished(1))
    state, again = lease(state)
    assert (again.step, again.version, len(again.leases)) == (2, 1, 4)
    assert lease(state)[1] == HoldBack("synchronization")
