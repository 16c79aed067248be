"""The master's work grows in proportion to explorers: operations are counted, and not seconds."""

import collections
import dataclasses

import pytest

from rl_sync.messages.events import (
    ExplorersSeen,
    GroupsBuffered,
    GroupsJudged,
    HoldBack,
    LeaseRequested,
)
from rl_sync.roles.master import transition
from rl_sync.roles.master.service import call_threads
from rl_sync.schedule import resolve
from rl_sync.simulation.speed.prediction import simulate
from tests.roles.master.mastering import (
    SPREAD,
    ids,
    lease,
    needing_spread,
    settings_of,
    started,
    take,
)
from tests.simulation.speed.plans import GROUPS, plan_with, work_with

SCREENING = {"max_attempts": 3, "filter_zero_variance": True}


class CountedLeases(dict):
    """Leases that count how often all of them are looked at."""

    looks = 0

    def values(self):
        self.looks += 1
        return super().values()

    def items(self):
        self.looks += 1
        return super().items()


def full(mode, explorers, **more):
    """A run in which every explorer has leases, and is held back."""
    run = settings_of(
        resolve(mode), groups=explorers, explorers=explorers, groups_per_lease=1, **more
    )
    state = started(run)
    while True:
        grants = []
        for explorer in range(1, explorers + 1):
            state, answer = lease(state, explorer)
            grants += [] if isinstance(answer, HoldBack) else [answer]
        if not grants:
            return dataclasses.replace(state, live=CountedLeases(state.live))


@pytest.mark.parametrize(
    ("mode", "carries_over"),
    [("synchronous", False), ("multi_explorer", False), ("multi_explorer", True)],
)
def test_requests_that_are_held_back_do_not_look_at_all_leases_each_time(mode, carries_over):
    state = full(mode, 30, carries_over=carries_over)
    requests = [LeaseRequested(explorer, 1.0, request=9) for explorer in range(1, 31)]
    after, answers = take(state, *requests, *requests)
    assert after is state
    assert {type(answer) for answer in answers} == {HoldBack}
    assert state.live.looks <= 2


def test_heartbeats_of_all_explorers_are_one_look_at_the_leases():
    state = full("multi_explorer", 30)
    after, _ = take(state, ExplorersSeen(dict.fromkeys(range(1, 31), 5.0)))
    assert {one.deadline_secs for one in after.live.values()} == {15.0}
    assert state.live.looks == 1


def test_a_heartbeat_of_an_explorer_without_leases_changes_nothing():
    state = full("multi_explorer", 3)
    assert take(state, ExplorersSeen({4: 5.0}))[0] is state


def test_admission_looks_only_at_the_groups_that_are_judged():
    state = full("multi_explorer", 30, screening=needing_spread(3))
    (first, *_) = state.live
    take(state, GroupsJudged(((first, SPREAD),)))
    assert state.live.looks == 0


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["synchronous", "one_step_off_policy", "multi_explorer"])
def test_explorers_that_wait_ask_as_often_however_many_they_are(mode):
    def requests_each(explorers):
        """Requests of an explorer in a step."""
        lengths = tuple((length,) for length in range(700, 1300, 7))
        work = work_with(rollout=1.0, train=0.5, lengths=lengths)
        plan = plan_with(
            mode, explorers=explorers, groups=explorers, transfer="server", groups_per_lease=1
        )
        work = dataclasses.replace(work, groups_per_step=explorers)
        heard = []
        simulate(plan, work, heard=lambda _, event: heard.append(event))
        return sum(isinstance(one, LeaseRequested) for one in heard) / explorers / plan.master.steps

    assert requests_each(32) < 1.5 * requests_each(8) < 6


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("synchronous", {}),
        ("one_step_off_policy", {}),
        ("multi_explorer", {"sync": {"max_staleness": 2}}),
        ("multi_explorer", {"algorithm": SCREENING}),
        ("one_step_off_policy", {"algorithm": SCREENING}),
        ("multi_explorer", {"rollout": {"streaming": True}, "sync": {"max_staleness": 2}}),
        ("multi_explorer", {"evaluation": {"every_steps": 2}}),
    ],
)
def test_events_that_free_no_work_leave_everybody_held_back(mode, more):
    plan = plan_with(mode, explorers=GROUPS, transfer="server", **more)
    work = work_with(lengths=((500,), (1000,), (2500,)), judge=work_with().train, replaced=0.3)
    state = transition.MasterState(plan.master)
    held, kinds = {}, collections.Counter()

    def take_also(_, event):
        nonlocal state
        state, commands = transition.transition(state, event)
        if isinstance(event, LeaseRequested):
            held.pop(event.explorer, None)
            if isinstance(commands[0], HoldBack):
                held[event.explorer] = event
            return
        answers = {one: transition.transition(state, held[one])[1][0] for one in held}
        freed = {one for one, answer in answers.items() if not isinstance(answer, HoldBack)}
        assert not freed or transition.may_free_work(event, commands)
        kinds[type(event)] += len(held)
        for explorer in freed:  # It will ask again.
            del held[explorer]

    simulate(plan, work, heard=take_also)
    assert kinds[GroupsBuffered]


def test_all_explorers_may_wait_at_once_and_others_are_still_answered():
    for explorers in (1, 40, 500):
        assert call_threads(explorers) > explorers + 8


def test_a_held_back_explorer_gets_the_leases_that_a_death_makes_free():
    state = full("multi_explorer", 2)
    state, commands = take(state, transition.ExplorerDied(1))
    assert transition.may_free_work(transition.ExplorerDied(1), commands)
    _, answer = lease(state, 2)
    assert ids(answer)
