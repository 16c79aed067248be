"""Trajectories of several segments, of which none attends to another."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import ModelConfig
from rl_sync.models.transformer import init_params
from rl_sync.types import Group

pytestmark = pytest.mark.gate

T = 24
MODEL = ModelConfig(
    vocab_size=40,
    embed_dim=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=16,
    max_length=T,
)
FORWARD = Forward(MODEL, temperature=1.0, logits_bytes=1 << 20)
LENGTHS = [[5, 7, 4], [9], [3, 12], [6, 6]]
"""Tokens of the segments of each trajectory; of each, the first two are given."""


def _group():
    random = np.random.default_rng(0)
    shape = (len(LENGTHS), T)
    tokens, mask = np.zeros(shape, np.int32), np.zeros(shape, bool)
    segments, turns = np.full(shape, -1, np.int32), np.zeros(shape, np.float32)
    for row, lengths in enumerate(LENGTHS):
        at = 0
        for number, length in enumerate(lengths):
            here = slice(at, at + length)
            tokens[row, here] = random.integers(2, 40, length)
            mask[row, at + 2 : at + length] = True
            segments[row, here] = number
            turns[row, at + length - 1] = row + number / 8
            at += length
    return Group(
        lease_id=0,
        ordinal=0,
        prompt_id=0,
        explorer=1,
        tokens=tokens,
        completion_mask=mask,
        behavior_logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        policy_versions=np.where(mask, 3, -1).astype(np.int32),
        rewards=np.arange(len(LENGTHS), dtype=np.float32),
        turn_rewards=turns,
        segments=segments,
        truncated=np.array([False, True, False, True]),
    )


def _alone(params):
    """The log-probabilities of each segment in a row of its own, trajectory after trajectory."""
    group, found = _group(), []
    for row, lengths in enumerate(LENGTHS):
        ends = np.cumsum(lengths)
        for start, end in zip(ends - lengths, ends, strict=True):
            tokens = jnp.asarray(group.tokens[row : row + 1, start:end])
            found.append(np.asarray(FORWARD.logprobs(params, {}, RowInputs(tokens)))[0, 2:])
    return np.concatenate(found)


def _batching(kind, updates=1):
    return Batching(kind, len(LENGTHS), T, updates, 0, of_episodes=True, with_segments=True)


@pytest.mark.nightly
@pytest.mark.samples(gate=("packed-2",))
@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed"])
def test_logprobs_are_those_of_each_segment_by_itself(kind, updates):
    params = init_params(MODEL, jax.random.key(1))
    rows = _batching(kind, updates).batch([_group()]).rows
    logprobs = np.asarray(
        FORWARD.logprobs(params, {}, RowInputs(jnp.asarray(rows.tokens), rows.packing))
    )
    mask, belongs = np.asarray(rows.completion_mask), np.asarray(rows.packing.trajectories)
    found = np.concatenate([logprobs[mask & (belongs == i)] for i in range(len(LENGTHS))])
    np.testing.assert_allclose(found, _alone(params), atol=1e-5)


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed"])
def test_rewards_of_turns_go_where_their_tokens_go(kind):
    group, rows = _group(), _batching(kind).batch([_group()]).rows
    belongs = np.asarray(rows.packing.trajectories)
    for row in range(len(LENGTHS)):
        there = belongs == row
        kept = group.segments[row] >= 0
        np.testing.assert_array_equal(rows.tokens[there], group.tokens[row, kept])
        np.testing.assert_array_equal(rows.turn_rewards[there], group.turn_rewards[row, kept])


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_the_largest_batch_has_the_shapes_of_a_batch(kind):
    largest = _batching(kind).largest()
    batch = _batching(kind).batch([_group()])
    assert jax.tree.structure(largest) == jax.tree.structure(batch)
    if kind == "padded":
        assert jax.tree.map(np.shape, largest) == jax.tree.map(np.shape, batch)


def test_a_group_comes_back_from_its_columns_without_the_endings():
    group = dataclasses.replace(_group(), endings=())
    columns = group.to_columns()
    assert "endings" not in columns
    again = Group.from_columns(columns)
    assert again.endings is None
    np.testing.assert_array_equal(again.segments, group.segments)
    np.testing.assert_array_equal(again.turn_rewards, group.turn_rewards)
