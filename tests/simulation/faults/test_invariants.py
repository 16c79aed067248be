"""Each rule is broken by what it forbids."""

import dataclasses

import numpy as np
import pytest

from rl_sync.messages.events import LiveLease
from rl_sync.records.flow import BUFFERED, DROPPED, TRAINED, Fate
from rl_sync.roles.master.state import MasterSettings, MasterState
from rl_sync.sampling_masks import no_entries
from rl_sync.schedule import resolve
from rl_sync.simulation.faults.drawn_run import draw
from rl_sync.simulation.faults.invariants import (
    BrokenRuleError,
    Invariants,
    SimulatedGroup,
    TrainedBatch,
    expected_weights,
)
from rl_sync.simulation.faults.simulated_groups import group_of
from rl_sync.types import CompletionProgress, Lease, Prompt, ReplyMark

EXACT = dataclasses.replace(
    draw(0),
    schedule=resolve("synchronous"),
    steps=2,
    groups_per_step=2,
    times_sampled=1,
)
LATEST = dataclasses.replace(EXACT, schedule=resolve("asynchronous", max_staleness=1))


def batch(*ordinals, version=0, first_lease=0):
    groups = [
        SimulatedGroup(first_lease + at, ordinal, 1, version, 100 + ordinal)
        for at, ordinal in enumerate(ordinals)
    ]
    return TrainedBatch(tuple(groups), ())


def state(run, **fields):
    settings = MasterSettings(run.schedule, run.steps, run.groups_per_step, 1, 1, 10.0)
    return MasterState(settings, **fields)


@pytest.fixture
def exact():
    return Invariants(EXACT)


@pytest.fixture
def latest():
    return Invariants(LATEST)


def test_an_exact_step_trains_on_its_groups_of_its_version(exact):
    exact.stepped(1, batch(0, 1), is_again=False)
    with pytest.raises(BrokenRuleError, match=r"trains on the ordinals \[3, 2\]"):
        exact.stepped(2, batch(3, 2, version=1, first_lease=2), is_again=False)
    with pytest.raises(BrokenRuleError, match="whose staleness is 1, over the bound 0"):
        exact.stepped(2, batch(2, 3, version=0, first_lease=2), is_again=False)
    ahead = Invariants(dataclasses.replace(EXACT, schedule=resolve("custom", 1, 1)))
    with pytest.raises(BrokenRuleError, match="of another version"):
        ahead.stepped(2, batch(2, 3, version=1), is_again=False)


def test_a_step_has_a_whole_batch_of_groups_that_are_not_too_old(latest):
    latest.stepped(2, batch(7, 3), is_again=False)
    with pytest.raises(BrokenRuleError, match="step 3 has 1 groups"):
        latest.stepped(3, batch(4, version=2, first_lease=2), is_again=False)
    with pytest.raises(BrokenRuleError, match="whose staleness is 2, over the bound 1"):
        latest.stepped(3, batch(4, 5, first_lease=2), is_again=False)
    with pytest.raises(BrokenRuleError, match="whose staleness is -1, over the bound 1"):
        latest.stepped(3, batch(4, 5, version=3, first_lease=2), is_again=False)


def test_no_lease_is_trained_on_more_often_than_allowed(latest):
    latest.stepped(1, batch(0, 1), is_again=False)
    with pytest.raises(BrokenRuleError, match=r"trains on leases \[1\] more often"):
        latest.stepped(2, batch(2, 3, version=1, first_lease=1), is_again=False)


def test_a_step_that_was_reported_or_logged_is_not_done_with_other_groups(latest):
    latest.stepped(1, batch(0, 1), is_again=False)
    latest.stepped(1, batch(0, 1), is_again=True)
    latest.stepped(1, batch(2, 3, first_lease=2), is_again=False)
    with pytest.raises(BrokenRuleError, match="step 1 was logged with"):
        latest.stepped(1, batch(0, 1), is_again=True)
    latest.mastered(state(LATEST, trained_steps=1), {1: 5})
    with pytest.raises(BrokenRuleError, match="step 1 was reported with"):
        latest.stepped(1, batch(6, 7, first_lease=6), is_again=False)


def test_versions_have_one_digest_and_explorers_use_no_other(exact):
    exact.published(0, 11)
    exact.decodes("explorer1", 0, 11)
    with pytest.raises(BrokenRuleError, match="version 0 was published with digest"):
        exact.published(0, 12)
    for version, weights in [(0, 12), (1, 11), (None, None)]:
        with pytest.raises(BrokenRuleError, match="explorer1 decodes with"):
            exact.decodes("explorer1", version, weights)


def test_the_ledger_is_balanced_and_the_newest_version_stays_the_newest(exact):
    exact.mastered(state(EXACT, newest=1), {})
    with pytest.raises(BrokenRuleError, match="3 leased, 1 ended, 0 live"):
        exact.mastered(state(EXACT, newest=1, leased=3, trained=1), {})
    with pytest.raises(BrokenRuleError, match="version 0 became the newest after 1"):
        exact.mastered(state(EXACT, newest=0), {})
    with pytest.raises(
        BrokenRuleError, match=r"2 steps are trained, and tokens are known of \[1\]"
    ):
        exact.mastered(state(EXACT, newest=1, trained_steps=2), {1: 4})


def test_a_run_ends_with_all_steps_their_tokens_and_the_digest(exact):
    exact.stepped(1, batch(0, 1), is_again=False)
    exact.stepped(2, batch(2, 3, version=1, first_lease=2), is_again=False)
    tokens = {1: 1 + 100 % 7 + 1 + 101 % 7, 2: 1 + 102 % 7 + 1 + 103 % 7}
    done = state(EXACT, trained_steps=2)
    exact.ended(done, tokens, expected_weights(EXACT))
    with pytest.raises(BrokenRuleError, match="the run ended after step 1 of 2"):
        exact.ended(state(EXACT, trained_steps=1), tokens, 0)
    with pytest.raises(BrokenRuleError, match="the ledger has tokens"):
        exact.ended(done, {**tokens, 2: 1}, expected_weights(EXACT))
    with pytest.raises(BrokenRuleError, match="without faults it is"):
        exact.ended(done, tokens, 5)


def test_every_generated_token_is_in_one_place_at_the_end(exact):
    """Groups 0 to 3 have 3, 4, 5 and 6 tokens; the last one is dropped."""
    groups = [*batch(0, 1).groups, *batch(2, 3, first_lease=2).groups]
    assert [one.tokens for one in groups] == [3, 4, 5, 6]
    exact.generated([group_of(one) for one in groups])
    exact.stepped(1, TrainedBatch(tuple(groups[:2]), ()), is_again=False)
    fates = {0: Fate(TRAINED), 1: Fate(TRAINED), 2: Fate(BUFFERED), 3: Fate(DROPPED, "too stale")}
    exact.accounted(fates)
    with pytest.raises(BrokenRuleError, match="of 18 generated tokens 5 are in no place"):
        exact.accounted({lease: fate for lease, fate in fates.items() if lease != 2})
    with pytest.raises(BrokenRuleError, match="12 count as trained, and steps have trained on 7"):
        exact.accounted({**fates, 2: Fate(TRAINED)})


def test_a_buffer_has_what_the_newest_snapshot_had_of_it(exact):
    exact.snapshot_begins(frozenset({1, 2, 3}))
    exact.buffer_restarted(frozenset())  # Before the snapshot is whole, all may be lost.
    exact.snapshot_begins(frozenset({1, 2, 3}))
    exact.snapshot_ends()
    exact.sampled(3)
    exact.buffer_restarted(frozenset({1, 2}))
    with pytest.raises(BrokenRuleError, match=r"the groups \[2\] of the newest snapshot are lost"):
        exact.buffer_restarted(frozenset({1}))


def test_groups_go_on_with_the_tokens_of_their_attempt_and_the_bound_of_these(latest):
    lease = Lease(1, 0, 0, Prompt(0, "", ""))
    latest.begins(lease, 3, 77, is_new=True)
    latest.begins(lease._replace(lease_id=2), 3, 77, is_new=False)
    with pytest.raises(BrokenRuleError, match="attempt 1 of ordinal 0 was begun with set"):
        latest.begins(lease._replace(attempt=1), 3, 77, is_new=False)
    with pytest.raises(BrokenRuleError, match="goes on with 78 of version 3"):
        latest.begins(lease, 3, 78, is_new=False)
    live = LiveLease(2, 0, 0, 1, version=3, buffered=False, deadline_secs=0.0)
    latest.gives(live, 3)
    with pytest.raises(BrokenRuleError, match="of version 3 goes on with tokens of version 2"):
        latest.gives(live, 2)


def test_replies_of_an_episode_go_on_behind_the_turns_of_their_attempt(latest):
    lease = Lease(1, 0, 1, Prompt(0, "", ""))

    def told(said, turns, attempt):
        marks = [ReplyMark(i, str(turn).encode(), None, "stop") for i, turn in enumerate(turns)]
        tokens = np.array(said) + 77
        nothing = np.zeros(len(said))
        return CompletionProgress(
            tokens, nothing, nothing, no_entries(), replies=tuple(marks), attempt=attempt
        )

    latest.answers(lease, told([1000, 1000, 1001], [1000, 1000, 1001], 1), 77)
    latest.answers(lease, told([0, 0], [], 0), 77)
    with pytest.raises(BrokenRuleError, match=r"turns \[0, 2\], but the turns were \[0, 1\]"):
        latest.answers(lease, told([0, 2], [0, 1], 0), 77)
    for turns, attempt in (([0, 1000], 0), ([0, 1], 1), ([1, 0], 0)):
        with pytest.raises(BrokenRuleError, match="turns of several attempts"):
            latest.answers(lease, told(turns, turns, attempt), 77)
