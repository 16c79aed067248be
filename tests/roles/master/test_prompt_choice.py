"""The master's choice of prompts by history: what it may know, and that it repeats."""

import collections
import dataclasses
import json
import random

import pytest

from rl_sync.messages.events import (
    BatchTrained,
    ExplorerDied,
    GrantLeases,
    GroupsBuffered,
    GroupsScored,
    HoldBack,
    Position,
    Started,
    VersionPublished,
)
from rl_sync.roles.master import transition
from rl_sync.schedule import resolve
from rl_sync.tasks.curriculum import CurriculumSettings, PromptPool
from rl_sync.tasks.order import prompt_at
from tests.roles.master.mastering import ids, judged, lease, needing_spread, settings_of, take

PROMPTS = 40


def settings(mode, selection="difficulty_band", **more):
    made = settings_of(resolve(mode), steps=12, groups=4, **more)
    curriculum = CurriculumSettings(selection=selection)
    return dataclasses.replace(made, curriculum=curriculum, pool=PromptPool(PROMPTS), seed=5)


def success(prompt, step):
    """A success that changes with the steps, as a policy learns."""
    return ((prompt * 7 + step) % 5) / 4


def begin(run, position=None):
    state = transition.MasterState(run)
    position = position or Position(0, 0, (), 0)
    return take(state, Started(position), VersionPublished(position.step))[0]


def play(run, draw, steps=12, state=None, stop_at=None, deaths=True):
    """Runs a master whose roles go at random speeds; returns prompts by ordinal, and the state."""
    state = state or begin(run)
    known, held = {}, collections.defaultdict(list)
    buffered, explorers = {}, range(1, run.explorers + 1)
    for _ in range(20_000):
        act = draw.random()
        explorer = draw.choice(explorers)
        if state.trained_steps >= (stop_at or steps):
            return known, state
        if deaths and act < 0.03:
            held[explorer].clear()
            state, _ = take(state, ExplorerDied(explorer))
        elif act < 0.5 and not held[explorer]:
            state, answer = lease(state, explorer)
            if isinstance(answer, GrantLeases):
                held[explorer] = [*answer.leases]
                for one in answer.leases:
                    at = one.ordinal, one.replacement
                    assert known.setdefault(at, one.choice.prompt) == one.choice.prompt
        elif act < 0.8 and held[explorer]:
            done, held[explorer] = held[explorer], []
            state, _ = take(
                state,
                GroupsScored(
                    tuple((d.lease_id, success(d.choice.prompt, run.step_of(d.ordinal)))
                          for d in done)
                ),
            )  # fmt: skip
            if run.screening.replaces:
                grant = GrantLeases(0, 0, True, tuple(done))
                rewards = [(float(d.choice.prompt % 3 == 0), 1.0) for d in done]
                state, (admit, *_) = take(state, judged(grant, *rewards))
                done = [d for d in done if d.lease_id in admit.lease_ids]
            state, _ = take(state, GroupsBuffered(tuple(d.lease_id for d in done)))
            buffered |= {d.ordinal: d.lease_id for d in done}
        else:
            first = state.trained_steps * run.groups_per_step
            batch = [buffered.get(first + i) for i in range(run.groups_per_step)]
            if run.schedule.pull == "latest":
                batch = [*buffered.values()][: run.groups_per_step]
                batch += [None] * (run.groups_per_step - len(batch))
            if None not in batch:
                step = state.trained_steps + 1
                # Publishing runs ahead of the report.
                state, _ = take(state, VersionPublished(step), BatchTrained(step, tuple(batch)))
                buffered = {o: i for o, i in buffered.items() if i not in batch}
    raise AssertionError("it does not end")


EXACT = ["synchronous", "one_step_off_policy"]


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("explorers", [1, 3])
@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("selection", ["difficulty_band", "easy_to_hard", "least_seen"])
def test_exact_modes_choose_the_same_prompts_however_fast_the_roles_are(
    mode, explorers, replaces, selection
):
    more = {"screening": needing_spread(3)} if replaces else {}
    run = settings(mode, selection, explorers=explorers, **more)
    runs = [play(run, random.Random(seed)) for seed in range(6)]
    for known, state in runs[1:]:
        assert [known[at] for at in sorted(known) if at in runs[0][0]] == [
            runs[0][0][at] for at in sorted(known) if at in runs[0][0]
        ]
        assert {at for at in known if at[1] == 0} == {at for at in runs[0][0] if at[1] == 0}
        assert transition.position(state).seen == transition.position(runs[0][1]).seen
    other = dataclasses.replace(run, seed=6)
    assert play(other, random.Random(0))[0] != runs[0][0]


@pytest.mark.parametrize("mode", [*EXACT, "asynchronous", "multi_explorer"])
def test_the_history_counts_each_trained_group_once_and_knows_its_success(mode):
    run = settings(mode, explorers=2)
    known, state = play(run, random.Random(1))
    position = transition.position(state)
    uses = sum(one.uses for one in position.seen) + len(position.pending)
    assert uses == 12 * run.groups_per_step
    assert {one.prompt for one in (*position.seen, *position.pending)} <= set(known.values())


@pytest.mark.parametrize("mode", EXACT)
def test_a_step_waits_for_the_results_that_its_prompts_are_chosen_by(mode):
    run = settings(mode)
    state = begin(run)
    ahead = run.schedule.offset + 1
    grants = []
    for _ in range(ahead):
        state, grant = lease(state)
        grants.append(grant)
        state, _ = take(
            state,
            GroupsScored(tuple((i, 0.5) for i in ids(grant))),
            GroupsBuffered(ids(grant)),
        )
    # The version may be there before the report of its step.
    state, _ = take(state, VersionPublished(1))
    assert lease(state)[1] == HoldBack("synchronization")
    state, _ = take(state, BatchTrained(1, ids(grants[0])))
    state, grant = lease(state)
    assert isinstance(grant, GrantLeases)
    assert grant.step == ahead + 1


@pytest.mark.parametrize("selection", ["difficulty_band", "easy_to_hard", "least_seen"])
def test_a_synchronous_run_that_goes_on_chooses_as_if_it_had_not_stopped(selection):
    run = settings("synchronous", selection, explorers=2)
    whole, _ = play(run, random.Random(1))
    _, state = play(run, random.Random(2), stop_at=7)
    fields = json.loads(json.dumps(transition.position(state)._asdict()))
    again = begin(run, Position.of_json(fields))
    rest, _ = play(run, random.Random(3), state=again)
    assert rest == {at: prompt for at, prompt in whole.items() if at[0] >= 7 * 4}


def test_under_latest_pulls_a_run_that_goes_on_keeps_its_history_and_the_prompts_to_do_again():
    run = settings("asynchronous")
    known, state = play(run, random.Random(2), stop_at=7)
    position = Position.of_json(json.loads(json.dumps(transition.position(state)._asdict())))
    assert position == transition.position(state)
    again = begin(run, position)
    assert again.history.seen() == state.history.seen()
    state, grant = lease(again)
    for one in grant.leases:
        if one.ordinal < position.next_ordinal:
            assert one.choice.prompt == known[one.ordinal, one.replacement]


def test_an_older_position_has_no_history():
    fields = {"step": 3, "next_ordinal": 12, "again": [[9, 1]], "next_lease": 14}
    assert Position.of_json(fields) == Position(3, 12, ((9, 1),), 14)


def test_prompts_that_are_in_flight_are_not_leased_again():
    run = settings("asynchronous", groups_per_lease=4)
    state, first = lease(begin(run))
    state, second = lease(state)
    prompts = [one.choice.prompt for one in (*first.leases, *second.leases)]
    assert len(set(prompts)) == len(prompts) == 8


def test_shuffled_runs_keep_the_order_of_before():
    run = settings("one_step_off_policy", "shuffled")
    known, _ = play(run, random.Random(1))
    assert known == {(o, r): prompt_at(o, PROMPTS, 5, r) for o, r in known}
