import dataclasses

import jax
import numpy as np
import pytest

from rl_sync.ending import Ending
from rl_sync.models.config import ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.actor import DifferentTaskError, Explorer, ExplorerState
from rl_sync.roles.explorer.group_rows import TOKEN_COLUMNS
from rl_sync.rollout import slots
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import End
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.types import Group, Lease
from tests.models import tiny
from tests.tasks.loading import load

TASK = load(
    arithmetic__operators="+",
    arithmetic__least_operand=0,
    arithmetic__greatest_operand=12,
    arithmetic__forgotten=0.0,
    arithmetic__held_out_problems=9,
)
MODEL = ModelConfig(
    vocab_size=TASK.tokenizer.vocab_size,
    embed_dim=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=16,
    max_length=TASK.row_tokens,
)


def _engine(slots=12, **options):
    return Engine(MODEL, Layout.single(), EngineOptions(slots=slots, **options))


EXPLORER = Explorer(
    number=2,
    engine=_engine(),
    task=TASK,
    sampling=Sampling(TASK.max_completion_tokens, (TASK.tokenizer.eos_id,)),
    group_size=3,
    groups=4,
    seed=7,
)
STATE = ExplorerState(5, tiny.params(MODEL))


def _lease(ordinal, attempt=0, prompt=None):
    prompt = ordinal if prompt is None else prompt
    return Lease(100 + ordinal, ordinal, attempt, TASK.train[prompt])


def _assert_same(a: Group, b: Group, atol=0.0):
    others = b.to_columns()
    for name, column in a.to_columns().items():
        np.testing.assert_allclose(column, others[name], rtol=0, atol=atol, err_msg=name)


def _longest(group: Group) -> int:
    """The end of the longest row: the rows are padded no further."""
    return int(np.nonzero(group.completion_mask.any(axis=0))[0].max()) + 1


@pytest.mark.gate
def test_each_lease_becomes_a_group_of_its_prompt():
    leases = [_lease(3), _lease(8, attempt=1)]
    state, groups = EXPLORER.rollout(STATE, leases)
    assert (state.version, state.unfinished) == (5, ())
    assert len(groups) == 2
    for lease, group in zip(leases, groups, strict=True):
        assert (group.lease_id, group.ordinal, group.explorer) == (lease.lease_id, lease.ordinal, 2)
        assert group.prompt_id == lease.prompt.prompt_id
        asked = TASK.tokenizer.encode(lease.prompt.text)
        assert group.tokens.shape == (3, _longest(group))
        assert np.all(group.tokens[:, : len(asked)] == asked)
        assert np.all(group.completion_mask.argmax(axis=1) == len(asked))
        assert np.all(group.policy_versions == np.where(group.completion_mask, 5, -1))
        assert group.oldest_version == 5
        assert np.all(group.rewards == 0)


@pytest.mark.gate
def test_a_completion_that_a_stop_ends_at_the_token_limit_is_not_cut(subtests):
    engine = _engine(decode=TASK.tokenizer.decode_all)
    one_token = Sampling(1, (TASK.tokenizer.eos_id,))
    explorer = dataclasses.replace(EXPLORER, engine=engine, sampling=one_token, group_size=12)
    first = len(TASK.tokenizer.encode(TASK.train[0].text))
    _, (group,) = explorer.rollout(STATE, [_lease(0)])
    drawn = group.tokens[:, first]
    np.testing.assert_array_equal(group.truncated, drawn != TASK.tokenizer.eos_id)
    digit = next(int(id) for id in drawn if TASK.tokenizer.decode([int(id)]).strip())
    for name, ends in [
        ("string", {"stop_strings": (TASK.tokenizer.decode([digit]),)}),
        ("id", {"stop_ids": (TASK.tokenizer.eos_id, digit)}),
    ]:
        with subtests.test(name):
            sampling = dataclasses.replace(one_token, **ends)
            _, (group,) = dataclasses.replace(explorer, sampling=sampling).rollout(
                STATE, [_lease(0)]
            )
            np.testing.assert_array_equal(group.tokens[:, first], drawn)
            ended = (drawn == digit) | (drawn == TASK.tokenizer.eos_id)
            assert 0 < ended.sum() < 12
            np.testing.assert_array_equal(group.truncated, ~ended)


@pytest.mark.gate
def test_behavior_logprobs_are_the_policy_s():
    _, (group,) = EXPLORER.rollout(STATE, [_lease(0)])
    logprobs, _ = token_logprobs(MODEL, STATE.params, group.tokens)
    mask = group.completion_mask
    np.testing.assert_allclose(group.behavior_logprobs[mask], np.asarray(logprobs)[mask], atol=1e-5)
    assert np.all(group.behavior_logprobs[~mask] == 0)


@pytest.mark.gate
def test_a_group_does_not_depend_on_the_leases_beside_it():
    _, full = EXPLORER.rollout(STATE, [_lease(i) for i in range(4)])
    _, (alone,) = EXPLORER.rollout(STATE, [_lease(2)])
    _assert_same(alone, full[2])
    _assert_same(EXPLORER.rollout(STATE, [_lease(2), _lease(0)])[1][1], full[0])


def test_randomness_comes_from_seed_ordinal_attempt_and_row_alone():
    def tokens(lease, **changes):
        _, (group,) = dataclasses.replace(EXPLORER, **changes).rollout(STATE, [lease])
        return group.tokens

    lease = _lease(1)
    first = tokens(lease)
    np.testing.assert_array_equal(tokens(lease._replace(lease_id=999), number=4), first)
    for other in (
        tokens(lease, seed=8),
        tokens(_lease(1, attempt=1)),
        tokens(_lease(2, prompt=1)),
    ):
        assert np.any(other != first)
    assert len({row.tobytes() for row in first}) == 3, "the rows of a group are one and the same"


@pytest.mark.gate
def test_fewer_leases_and_other_weights_compile_nothing():
    EXPLORER.compile(STATE.params)
    other = ExplorerState(6, jax.tree.map(lambda x: 0.5 * x, STATE.params))
    # How far the cache is read depends on the lengths of completions, and so on the weights.
    for state in (STATE, other):
        EXPLORER.rollout(state, [_lease(i) for i in range(4)])
    compiled = slots.prefill._cache_size(), slots.decode_chunk._cache_size()
    for leases in (1, 3, 4):
        EXPLORER.rollout(other, [_lease(i) for i in range(leases)])
    assert (slots.prefill._cache_size(), slots.decode_chunk._cache_size()) == compiled


@pytest.mark.gate
def test_newer_weights_take_over_in_flight_and_each_token_says_whose_it_is():
    explorer = dataclasses.replace(EXPLORER, engine=_engine(chunk_tokens=2))
    other = ExplorerState(6, jax.tree.map(lambda x: 0.5 * x, STATE.params))
    state, groups = explorer.rollout(
        STATE, [_lease(0)], lambda state: other if state.version == STATE.version else None
    )
    assert (state.version, state.params is other.params) == (6, True)
    (group,) = groups
    assert group.oldest_version == 5
    for versions, mask in zip(group.policy_versions, group.completion_mask, strict=True):
        length = mask.sum()
        assert versions[mask].tolist() == [5, 5, *[6] * (length - 2)][:length]
    assert np.any(group.policy_versions == 6)


def _with_budget(budget_tokens):
    """Makes an explorer whose engine, with too few slots, finishes one group after the other."""
    engine = _engine(slots=4, chunk_tokens=1)
    return dataclasses.replace(EXPLORER, engine=engine, budget_tokens=budget_tokens)


OTHER = ExplorerState(6, jax.tree.map(lambda x: 0.5 * x, STATE.params))


@pytest.mark.gate
def test_a_group_that_takes_several_rollouts_is_the_one_that_takes_one():
    leases = [_lease(i) for i in range(4)]
    _, expected = EXPLORER.rollout(STATE, leases)
    explorer = _with_budget(6)
    state, groups = explorer.rollout(STATE, leases)
    rollouts = 1
    while state.unfinished:
        held = [group.lease.ordinal for group in state.unfinished]
        assert held == sorted({0, 1, 2, 3} - {group.ordinal for group in groups})
        state, more = explorer.rollout(state, [])
        groups += more
        rollouts += 1
    assert rollouts >= 4, "no group took several rollouts"
    assert explorer.engine.unfinished == 0
    for group, other in zip(groups, expected, strict=True):
        _assert_same(group, other, atol=1e-6)


@pytest.mark.gate
def test_a_rollout_takes_new_leases_beside_what_is_unfinished():
    explorer = _with_budget(12)
    state, done = explorer.rollout(STATE, [_lease(i) for i in range(4)])
    assert [group.ordinal for group in done] == [0]
    new = _lease(7)
    with pytest.raises(ValueError, match="not 5: 3 unfinished ones and 2 leases"):
        explorer.rollout(state, [new, _lease(8)])
    rest, late = dataclasses.replace(explorer, budget_tokens=0).rollout(state, [new])
    assert rest.unfinished == ()
    assert [group.ordinal for group in late] == [1, 2, 3, 7]
    _assert_same(late[-1], EXPLORER.rollout(STATE, [new])[1][0], atol=1e-6)


@pytest.mark.gate
@pytest.mark.parametrize("cache", ["keep", "recompute"])
def test_what_is_unfinished_goes_on_with_the_weights_of_the_next_rollout(cache):
    engine = _engine(chunk_tokens=2, cache=cache)
    explorer = dataclasses.replace(EXPLORER, engine=engine, budget_tokens=1)
    state, none = explorer.rollout(STATE, [_lease(0)])
    assert none == []
    finishing = dataclasses.replace(explorer, budget_tokens=0)
    state = state._replace(version=OTHER.version, params=OTHER.params)
    state, (group,) = finishing.rollout(state, [])
    assert state.version == 6
    assert group.oldest_version == 5
    for versions, mask in zip(group.policy_versions, group.completion_mask, strict=True):
        assert versions[mask].tolist() == [5, 5, *[6] * (mask.sum() - 2)]


@pytest.mark.gate
def test_a_cache_is_not_recomputed_for_the_weights_that_it_is_of():
    engine = _engine(chunk_tokens=1, cache="recompute")
    explorer = dataclasses.replace(EXPLORER, engine=engine, budget_tokens=1)
    state, _ = explorer.rollout(STATE, [_lease(0)])
    before = engine.stats.prefill_tokens
    state, _ = explorer.rollout(state, [])
    assert engine.stats.prefill_tokens == before
    explorer.rollout(state._replace(version=6, params=OTHER.params), [])
    assert engine.stats.prefill_tokens > before


@pytest.mark.gate
def test_a_streaming_explorer_has_its_slots_full_and_gives_the_same_groups():
    leases = [_lease(i) for i in range(4)]
    _, expected = EXPLORER.rollout(STATE, leases)
    engine = _engine(slots=6, chunk_tokens=1)
    explorer = dataclasses.replace(EXPLORER, engine=engine, groups=3, in_parts=True, streams=True)
    state, groups, begun = STATE, [], 0
    assert explorer.room(state) == 3, "two groups fill the slots, and one waits"
    while len(groups) < 4:
        more = leases[begun : begun + explorer.room(state)]
        begun += len(more)
        before = engine.stats
        state, whole = explorer.rollout(state, more)
        groups += whole
        drawn = engine.stats - before
        assert drawn.steps == 1
        assert begun == 4 or drawn.occupancy == 1.0
    assert explorer.engine.unfinished == 0
    assert state.unfinished == ()
    for group in groups:
        _assert_same(group, expected[group.ordinal], atol=1e-6)


@pytest.mark.gate
def test_a_streaming_explorer_begins_no_more_than_it_has_room_for():
    engine = _engine(slots=6, chunk_tokens=1)
    explorer = dataclasses.replace(EXPLORER, engine=engine, groups=3, in_parts=True, streams=True)
    with pytest.raises(ValueError, match="1 to 3 groups in flight, not 4"):
        explorer.rollout(STATE, [_lease(i) for i in range(4)])
    state, _ = explorer.rollout(STATE, [_lease(i) for i in range(3)])
    assert explorer.room(state) == 0


@pytest.mark.parametrize("leases", [0, 5])
def test_leases_without_room_are_refused(leases):
    with pytest.raises(ValueError, match=f"1 to 4 groups in flight, not {leases}"):
        EXPLORER.rollout(STATE, [_lease(i) for i in range(leases)])


def test_a_greedy_completion_beside_a_group_changes_nothing_of_it_and_becomes_its_baseline():
    explorer = dataclasses.replace(EXPLORER, with_baselines=True)
    _, (alone,) = EXPLORER.rollout(STATE, [_lease(3)])
    _, (group,) = explorer.rollout(STATE, [_lease(3)])
    assert group.tokens.shape == (4, _longest(group))
    prompt = np.array(TASK.tokenizer.encode(TASK.train[3].text), np.int32)
    request = CompletionRequest(prompt, dataclasses.replace(EXPLORER.sampling, greedy=True))
    ((greedy,),) = EXPLORER.engine.generate([request])
    np.testing.assert_array_equal(group.tokens[3][group.completion_mask[3]], greedy.tokens)
    judged = explorer.rewarded(group, np.array([1.0, 0.0, 0.5, 0.75], np.float32))
    np.testing.assert_array_equal(judged.rewards, [1.0, 0.0, 0.5])
    np.testing.assert_array_equal(judged.baselines, [0.75, 0.75, 0.75])
    there = alone.tokens.shape[1]  # The greedy completion may be longer.
    rows = {name: getattr(judged, name)[:, :there] for name in TOKEN_COLUMNS[:4]}
    without = dataclasses.replace(judged, baselines=None, rewards=alone.rewards, **rows)
    _assert_same(without, alone, atol=1e-6)


@pytest.mark.gate
def test_a_group_whose_greedy_completion_is_unfinished_is_carried_over():
    engine = _engine(chunk_tokens=1)
    explorer = dataclasses.replace(EXPLORER, engine=engine, budget_tokens=1, with_baselines=True)
    state, groups = explorer.rollout(STATE, [_lease(0)])
    while not groups:
        assert len(state.unfinished[0].completions) < 4
        state, groups = explorer.rollout(state, [])
    _, (whole,) = dataclasses.replace(EXPLORER, with_baselines=True).rollout(STATE, [_lease(0)])
    _assert_same(groups[0], whole, atol=1e-5)


def test_completions_that_could_not_be_judged_are_masked_and_move_no_baseline():
    with_baselines = dataclasses.replace(EXPLORER, with_baselines=True)
    (group,) = EXPLORER.rollout(STATE, [_lease(3)])[1]
    some = EXPLORER.rewarded(group, np.array([1, np.nan, 0], np.float32))
    assert some.rewards.tolist() == [1.0, 0.5, 0.0]
    assert some.completion_mask.any(axis=1).tolist() == [True, False, True]
    assert some.oldest_version == group.oldest_version
    by_part = np.array([[1, 0.5], [np.nan, np.nan], [0, 0.5]], np.float32)
    parts = EXPLORER.rewarded(group, np.array([1, np.nan, 0], np.float32), by_part).parts
    assert parts.tolist() == [[1.0, 0.5], [0.5, 0.5], [0.0, 0.5]]
    none = EXPLORER.rewarded(group, np.array([np.nan] * 3, np.float32))
    assert none.rewards.tolist() == [0.0] * 3
    assert not none.completion_mask.any()
    assert none.oldest_version == group.oldest_version
    baseline = with_baselines.rewarded(group, np.array([1, np.nan, 0.25], np.float32))
    assert (baseline.rewards.tolist(), baseline.baselines.tolist()) == ([1.0, 1.0], [0.25] * 2)
    known = np.array([[1, 0.5], [0, 0.5], [1, 0]], np.float32)
    of_two = with_baselines.rewarded(group, np.array([1, 0, 0.25], np.float32), known)
    assert of_two.parts.tolist() == [[1.0, 0.5], [0.0, 0.5]]
    lost = with_baselines.rewarded(group, np.array([1, 0, np.nan], np.float32))
    assert lost.rewards.tolist() == [0.0] * 2
    assert not lost.completion_mask.any()


class Hearing:
    """A director that hears of the episodes that begin, and ends them at once."""

    def __init__(self, seats=None):
        self.begun, self._seats = [], seats or {}

    def begin(self, episodes):
        self.begun += episodes

    def answers(self, timeout_secs, all_of_them):
        seats = [self._seats.get(number) for number in range(len(self.begun))]
        endings = [Ending({}, {}, "done", "", turns=0, seat=seat) for seat in seats]
        return [End(one.episode, end) for one, end in zip(self.begun, endings, strict=True)]

    def close(self):
        pass


def _with_rows(seats=None, **fields):
    train = [one._replace(row={"kind": i, **fields}) for i, one in enumerate(TASK.train)]
    director = Hearing(seats)
    engine = EpisodeEngine(_engine(), lambda: director, repeats=True)
    task = dataclasses.replace(TASK, train=train)
    return director, dataclasses.replace(EXPLORER, engine=engine, task=task)


def test_episodes_begin_with_all_fields_of_the_explorers_own_row():
    director, explorer = _with_rows(stones=[3, 4], prompt="not this one")
    lease = _lease(1, prompt=5)._replace(prompt=TASK.train[5]._replace(row=None))
    explorer.rollout(STATE, [lease])
    asked = TASK.train[5]
    fields = {"prompt": asked.text, "answer": asked.answer, "kind": 5, "stones": [3, 4]}
    assert [one.row for one in director.begun] == [fields] * explorer.group_size


def test_a_group_of_games_has_the_seat_of_each_and_other_groups_have_none():
    """The last game failed before it had a seat, and the greedy one has no place in a batch."""
    _, explorer = _with_rows(seats={0: 1, 1: 1})
    _, (group,) = explorer.rollout(STATE, [_lease(1)])
    assert group.seats.tolist() == [1, 1, 0]
    assert Group.from_columns(group.to_columns()).seats.tolist() == [1, 1, 0]
    with_baselines = dataclasses.replace(explorer, group_size=2, with_baselines=True)
    assert with_baselines.rewarded(group, np.zeros(3, np.float32)).seats.tolist() == [1, 1]
    _, (group,) = _with_rows()[1].rollout(STATE, [_lease(1)])
    assert group.seats is None
    assert "seats" not in group.to_columns()


@pytest.mark.parametrize(
    "other",
    [
        TASK.train[5]._replace(text="1+1="),
        TASK.train[5]._replace(answer="x"),
        TASK.train[5]._replace(prompt_id=10_000),
    ],
)
def test_a_lease_of_another_task_than_the_explorers_own_is_refused(other):
    _, explorer = _with_rows()
    with pytest.raises(DifferentTaskError, match=r"in the master, but .* in explorer 2\. Each"):
        explorer.rollout(STATE, [_lease(1)._replace(prompt=other)])
