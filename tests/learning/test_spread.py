"""Rewards without spread teach nothing, to the bit; rewards with any spread teach, however tiny."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.algorithms import advantages, masking, returns, shaping, values
from rl_sync.algorithms.algorithm import ADVANTAGES, ALGORITHMS
from rl_sync.learning import credit
from rl_sync.learning.objective import LossConfig
from rl_sync.types import Rows, TrainBatch

pytestmark = pytest.mark.gate

B, T, SIZES = 56, 3, (2, 7, 8)
LENGTHS = np.resize([3, 1, 2, 0, 3, 2, 1], B)
"""Some completions have no tokens, as those that could not be judged."""
MASK = np.arange(T) < LENGTHS[:, None]
TYPES = (np.float32, jnp.bfloat16)
ROWS = Rows(
    tokens=np.full((B, T), 2, np.int32),
    completion_mask=MASK,
    behavior_logprobs=np.full((B, T), -1.0, np.float32),
    policy_versions=np.zeros((B, T), np.int32),
)
OF_DATA = {
    name
    for name, one in ALGORITHMS.items()
    if ADVANTAGES[one.advantage].of_demonstrations or ADVANTAGES[one.advantage].of_preferences
}
"""Algorithms that learn from data, not from rewards."""
OF_BATCH = {"ppo", "reinforce_pp", "reinforce_pp_baseline", "remax"}
"""Algorithms whose advantages also depend on other groups, or on values and baselines."""


def of_groups(rewards, group_size):
    """Advantages that compare a group's trajectories."""
    lengths = LENGTHS.astype(rewards.dtype)
    names = "dr_grpo", "grpo", "rloo", "best", "pair"
    found = {name: getattr(advantages, name)(rewards, group_size) for name in names}
    names = "opo", "reinforce_pp_baseline"
    return found | {name: getattr(advantages, name)(rewards, lengths, group_size) for name in names}


def of_batches(rewards):
    """Advantages of tokens, and what is whitened over the batch."""
    at_end = returns.at_the_end(rewards, MASK)
    value = jnp.where(MASK, rewards[:, None], 0)  # A critic and greedy completions that are right.
    gae = returns.gae(at_end, value, MASK, 1.0, 0.95).advantages
    return {
        "reinforce_pp": returns.reinforce_pp(at_end, MASK, 1.0).advantages,
        "gae": gae,
        "whitened gae": masking.whiten(gae, MASK),
        "whitened returns of gae with values of 0": masking.whiten(
            returns.gae(at_end, 0 * value, MASK, 1.0, 1.0).advantages, MASK
        ),
        "n_step": returns.n_step(at_end, value, MASK, 1.0, 2).advantages,
        "remax": returns.remax(at_end, rewards, MASK).advantages,
        "rae": jnp.where(LENGTHS > 0, advantages.rae(rewards, LENGTHS), 0),
        "whole batch": masking.centered(rewards),
    }


def of_algorithms(rewards, baselines, group_size):
    """Advantages of all named algorithms, and the metric of all of them."""
    value = jnp.where(MASK, baselines[:, None], 0)
    batch = TrainBatch(ROWS, rewards, baselines)
    found = {}
    for name in sorted({*ALGORITHMS} - OF_DATA):
        estimate, _, metrics = credit.give(
            LossConfig(ALGORITHMS[name], group_size, T, (1,), 0),
            batch,
            values=value,
            ref_logprobs=ROWS.behavior_logprobs,
        )
        found[name] = jnp.broadcast_to(estimate.advantages, MASK.shape)
    return found, metrics["groups_without_spread"], metrics["reward_std"]


GROUPS = jax.jit(of_groups, static_argnames="group_size")
BATCHES = jax.jit(of_batches)
NAMED = jax.jit(of_algorithms, static_argnames="group_size")
has_spread = jax.jit(shaping.has_spread, static_argnames="group_size")

AWKWARD = (0.1, 1 / 3, 0.7, 7.7, 99.9, 100.1, -0.7, 0.0, -0.0)
"""Sums of these are rounded, so that a mean is not their common value; or the sign may matter."""
level = st.sampled_from(AWKWARD) | st.builds(
    lambda sign, mantissa, power: sign * mantissa * 10.0**power,
    st.sampled_from((1, -1)),
    st.floats(1, 10),
    st.integers(-6, 5),
)
types, sizes = st.sampled_from(TYPES), st.sampled_from(SIZES)


def by_group(group_size, drawn):
    """Copies a value to each trajectory of a group; groups get drawn values in turn."""
    return np.repeat(np.resize(drawn, B // group_size), group_size)


def assert_nothing(found):
    for name, advantage in found.items():
        assert not np.asarray(advantage, np.float32).any(), name


@settings(max_examples=150, deadline=None)
@given(types, sizes, st.lists(level, min_size=1, max_size=8))
def test_groups_of_equal_rewards_have_no_advantages(dtype, group_size, drawn):
    rewards = by_group(group_size, drawn).astype(dtype)
    assert_nothing(GROUPS(rewards, group_size))
    assert not has_spread(rewards, group_size).any()
    lengths = LENGTHS.astype(dtype)
    found = jax.jit(advantages.reinforce_pp_baseline, static_argnums=2)(
        rewards, lengths, group_size
    )
    assert not np.asarray(found, np.float32).any()


@pytest.mark.nightly
@settings(max_examples=150, deadline=None)
@given(types, level)
def test_nothing_is_left_of_a_batch_of_equal_rewards_that_is_whitened(dtype, drawn):
    assert_nothing(BATCHES(np.full(B, drawn).astype(dtype)))


@settings(max_examples=50, deadline=None)
@given(types, level)
def test_no_named_algorithm_learns_from_equal_rewards(dtype, drawn):
    rewards = np.full(B, drawn).astype(dtype)
    found, without_spread, deviation = NAMED(rewards, rewards, 8)
    assert_nothing(found)
    assert (without_spread, deviation) == (1, 0)


@pytest.mark.parametrize("dtype", TYPES)
def test_equal_rewards_teach_nothing_where_functions_are_not_compiled_as_a_whole(dtype):
    for drawn in (0.7, 99.9, 1e6 / 3):
        rewards = jnp.full(B, drawn, dtype)
        assert_nothing(of_groups(rewards, 7))
        assert not masking.whiten(rewards, LENGTHS > 0).any()


def nearly(dtype, group_size, drawn, steps):
    """Rewards that are equal in a group but for steps to the next numbers of their type."""
    drawn = [abs(one) or 1.0 for one in drawn]
    rewards = by_group(group_size, drawn).astype(dtype)
    whole = {2: np.uint16, 4: np.uint32}[rewards.dtype.itemsize]
    return (rewards.view(whole) + np.resize(steps, B).astype(whole)).view(rewards.dtype)


tiny_steps = st.lists(st.integers(0, 3), min_size=1, max_size=B)


@settings(max_examples=150, deadline=None)
@given(types, sizes, st.lists(level, min_size=1, max_size=8), tiny_steps, st.sampled_from((1, -1)))
def test_a_tiny_spread_keeps_the_signs_of_its_advantages(dtype, group_size, drawn, steps, sign):
    rewards = sign * nearly(dtype, group_size, drawn, steps)
    grouped = np.asarray(rewards, np.float64).reshape(-1, group_size)
    deviations = grouped - grouped.mean(axis=1, keepdims=True)
    least, greatest = (grouped == f(grouped, axis=1, keepdims=True) for f in (np.min, np.max))
    spread = ~least.all(axis=1)
    np.testing.assert_array_equal(has_spread(rewards, group_size), np.repeat(spread, group_size))
    found = GROUPS(rewards, group_size)
    for name in ("dr_grpo", "grpo", "rloo"):
        ours = np.asarray(found[name], np.float64).reshape(grouped.shape)
        np.testing.assert_array_equal((ours != 0).any(axis=1), spread, name)
        assert (ours[least & spread[:, None]] < 0).all(), name
        assert (ours[greatest & spread[:, None]] > 0).all(), name
    if dtype == np.float32:
        deviation = grouped.std(axis=1, ddof=1, keepdims=True)
        expected = {
            "dr_grpo": deviations,
            "grpo": deviations / (deviation + 1e-6),
            "rloo": deviations * group_size / (group_size - 1),
        }
        for name, of in expected.items():
            scale = np.abs(of).max(axis=1, keepdims=True)
            ours = np.asarray(found[name], np.float64).reshape(grouped.shape)
            assert (np.abs(ours - of) <= 1e-6 * group_size * scale).all(), name


@settings(max_examples=50, deadline=None)
@given(st.lists(level, min_size=1, max_size=7), tiny_steps)
def test_groups_without_spread_are_those_that_get_no_advantages(drawn, steps):
    rewards = nearly(np.float32, 8, drawn, steps)
    found, without_spread, _ = NAMED(rewards, rewards, 8)
    judged = LENGTHS.reshape(-1, 8) > 0
    grouped = rewards.reshape(-1, 8)
    highest, lowest = (
        f(grouped, axis=1, where=judged, initial=start)
        for f, start in ((np.max, -np.inf), (np.min, np.inf))
    )
    np.testing.assert_allclose(without_spread, (highest == lowest).mean(), atol=1e-6)
    for name in {*found} - OF_BATCH:
        if ALGORITHMS[name].advantage == "none":
            assert not np.asarray(found[name]).any()
            continue
        of_trajectories = np.asarray(found[name])[:, 0].reshape(-1, 8)
        assert not of_trajectories[~judged].any(), name
        np.testing.assert_array_equal(~of_trajectories.any(axis=1), highest == lowest, name)


def test_one_step_above_the_others_is_the_only_advantage_above_0():
    rewards = np.resize(np.float32(0.1), B)
    rewards[::8] = np.nextafter(rewards[0], np.float32(1))
    ours = np.asarray(GROUPS(rewards, 8)["grpo"], np.float64).reshape(-1, 8)
    step = float(rewards[0]) - float(rewards[1])
    above = 7 / 8 * step / (step / 8**0.5 + 1e-6)
    np.testing.assert_allclose(ours[:, 0], above, rtol=1e-6)
    np.testing.assert_allclose(ours[:, 1:], -above / 7, rtol=1e-6)


def test_a_lone_token_of_a_batch_has_nothing_to_be_compared_with():
    mask = np.zeros((B, T), bool)
    mask[4, 1] = True
    whitened = jax.jit(masking.whiten)(np.full((B, T), 0.7, np.float32), mask)
    assert not np.asarray(whitened).any()
    rewards = np.resize(np.float32([1, 0]), B)
    lengths = np.eye(1, B, dtype=np.float32)[0]
    found = jax.jit(advantages.reinforce_pp_baseline, static_argnums=2)(rewards, lengths, 8)
    assert not np.asarray(found).any()


def test_values_explain_nothing_of_returns_that_are_equal():
    guesses = np.resize(np.float32([0, 1, 2]), (B, T))
    explained = jax.jit(values.explained_variance)
    for drawn in AWKWARD:
        equal = np.full((B, T), drawn, np.float32)
        assert np.isnan(explained(guesses, equal, MASK)), drawn
        assert explained(guesses, guesses + np.float32(0.5), MASK) == 1


@pytest.mark.parametrize("group_size", SIZES)
def test_a_group_of_equal_rewards_is_within_bounds_that_are_its_reward(group_size):
    within = jax.jit(shaping.within_difficulty, static_argnames="group_size")
    for drawn in AWKWARD:
        rewards = np.full(B, drawn, np.float32)
        assert within(rewards, group_size, np.float32(drawn), np.float32(drawn)).all(), drawn


@pytest.mark.parametrize(
    ("rewards", "without_spread"), [((0.7, 0.7), 0), ((0.7, -0.3), 1), ((-0.3, 0.7), 0)]
)
def test_the_spread_is_that_of_rewards_with_the_overlong_penalty(rewards, without_spread):
    """The first completion of a pair has its reward lowered by 1 at the limit, the other not."""
    algorithm = dataclasses.replace(ALGORITHMS["dr_grpo"], overlong_tokens=1)
    rows = ROWS._replace(completion_mask=np.arange(T) < np.resize([3, 2], B)[:, None])
    batch = TrainBatch(rows, np.resize(np.float32(rewards), B))
    give = jax.jit(lambda batch: credit.give(LossConfig(algorithm, 2, T, (1,), 0), batch))
    estimate, _, metrics = give(batch)
    assert metrics["groups_without_spread"] == without_spread
    assert np.asarray(estimate.advantages).any() != bool(without_spread)


def test_equal_episodes_have_equal_returns_wherever_their_replies_stand():
    """Sums over tokens are rounded in the order of the tokens; these are made by reply."""
    random, replies, T = np.random.default_rng(0), 6, 40
    algorithm = dataclasses.replace(ALGORITHMS["grpo"], turn_discount=0.9)

    @jax.jit
    def give(mask, turns, rewards):
        zeros = np.zeros(mask.shape, np.int32)
        rows = Rows(zeros, mask, zeros.astype(np.float32), zeros, turn_rewards=turns)
        batch = TrainBatch(rows, rewards)
        estimate, _, metrics = credit.give(LossConfig(algorithm, 4, T, (1,), 0), batch)
        return estimate.advantages, metrics["groups_without_spread"]

    for _ in range(20):
        earned = random.uniform(-1, 1, replies).round(1)
        mask, turns = np.zeros((8, T), bool), np.zeros((8, T), np.float32)
        for row in range(8):
            at = 0
            for reward in earned:
                begin = at + random.integers(1, 3)
                at = begin + random.integers(1, 4)
                mask[row, begin:at], turns[row, at - 1] = True, reward
        found, without_spread = give(mask, turns, np.full(8, sum(earned), np.float32))
        assert not np.asarray(found).any()
        assert without_spread == 1
