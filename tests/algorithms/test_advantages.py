import jax
import numpy as np
import pytest

from rl_sync.algorithms import advantages, shaping
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import GROUP_SIZE, LENGTHS, MASK, VALUES

best, dr_grpo, grpo, opo, pair, reinforce_pp_baseline, rloo = (
    compiled(getattr(advantages, name), "group_size")
    for name in ("best", "dr_grpo", "grpo", "opo", "pair", "reinforce_pp_baseline", "rloo")
)
gdpo = compiled(advantages.gdpo, "group_size", "part_weights")
rae = compiled(advantages.rae)
without_unjudged = compiled(shaping.without_unjudged, "group_size")
REWARDS = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
OF_REWARDS = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo, "best": best}
OF_JUDGED = {"grpo": grpo, "rloo": rloo, "pair": pair}
"""Advantages that are also told by lengths which trajectories could be judged."""
OF_LENGTHS = {"opo": opo, "reinforce_pp_baseline": reinforce_pp_baseline}


def _of(name, rewards, lengths, group_size):
    if name in OF_LENGTHS:
        return OF_LENGTHS[name](rewards, lengths, group_size)
    return {**OF_REWARDS, **OF_JUDGED}[name](rewards, group_size)


def _with_lengths(name, rewards, lengths, group_size):
    if name in OF_JUDGED:
        return OF_JUDGED[name](rewards, group_size, lengths)
    return _of(name, rewards, lengths, group_size)


def test_gdpo_normalizes_each_part_before_it_adds_them():
    """Each A_k is ±1/√2, or 0 where the group's scores are equal."""
    parts = np.array([[1, 0.0], [0, 0.1], [1, 0.2], [1, 0.0]])
    expected = np.array([1 - 0.5, -1 + 0.5, 0.5, -0.5]) / 2**0.5
    expected /= np.sqrt(np.square(expected).sum() / 3)
    ones = np.ones(4)
    found = gdpo(parts, (1.0, 0.5), ones, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    scaled = gdpo(parts * [1, 100], (1.0, 0.5), ones, 2)
    np.testing.assert_allclose(scaled, found, rtol=1e-4)
    np.testing.assert_allclose(gdpo(parts, (-1.0, -0.5), ones, 2), -expected, rtol=1e-4)
    assert not gdpo(parts[2:, :1], (1.0,), ones[:2], 2).any()


def test_by_hand():
    np.testing.assert_allclose(
        dr_grpo(REWARDS, 4), [0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0], atol=1e-12
    )
    np.testing.assert_allclose(grpo(REWARDS, 4), [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(rloo(REWARDS, 4), [1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0])
    np.testing.assert_array_equal(best(REWARDS, 4), [1, 0, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(best(-REWARDS, 4), [0, 1, 1, 1, 0, 0, 0, 0])


def test_the_baseline_of_a_role_is_the_mean_of_its_own_trajectories():
    """The first player wins two games of three, and the second one of two; one is not judged."""
    rewards = np.array([1.0, 1.0, -1.0, -1.0, 1.0, 9.0, 0.7])
    lengths, roles = np.array([3, 1, 2, 1, 1, 0, 4.0]), np.array([5, 2, 5, 2, 5, 2, 0])
    expected = [2 / 3, 1, -4 / 3, -1, 2 / 3, 0]
    found = rae(rewards, lengths, roles)
    np.testing.assert_allclose(found[lengths > 0], expected, rtol=1e-6)
    assert found[6] == 0, "it is alone in its role"


def test_roles_of_equal_rewards_have_no_advantages_to_the_bit():
    roles = np.array([0, 1, 2, 1, 0, 1, 0])
    rewards = np.array([0.1, 1 / 3, -7.7])[roles]
    assert not rae(rewards, np.ones(7), roles).any()
    assert rae(rewards, np.ones(7), roles[::-1]).any()


def test_a_long_trajectory_pulls_the_baseline_of_opo_by_its_length():
    lengths = np.array([3.0, 1.0])
    np.testing.assert_allclose(opo(np.array([1.0, 0.0]), lengths, 2), [0.25, -0.75])


def test_the_baseline_form_of_reinforce_pp_is_whitened_over_tokens_by_hand():
    """±½, the first in 1 token, the second in 3: mean −¼, variance (¾² + 3 · ¼²) / 3 = ¼."""
    lengths = np.array([1.0, 3.0])
    whitened = reinforce_pp_baseline(np.array([1.0, 0.0]), lengths, 2)
    np.testing.assert_allclose(whitened, [1.5, -0.5], rtol=1e-6)


@pytest.mark.parametrize("name", sorted({*OF_REWARDS, *OF_LENGTHS} - {"best"}))
def test_advantages_are_the_reference_s(name):
    ours = _of(name, VALUES["rewards"], LENGTHS.astype(float), GROUP_SIZE)
    np.testing.assert_allclose(ours[:, None] * MASK, VALUES[f"adv/{name}"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", sorted({*OF_REWARDS, "opo"}))
def test_a_group_does_not_see_the_others(name):
    rewards, lengths = VALUES["rewards"], np.arange(1.0, 13.0)
    alone = _of(name, rewards[:4], lengths[:4], 4)
    np.testing.assert_allclose(alone, _of(name, rewards, lengths, 4)[:4])


@pytest.mark.parametrize("name", sorted({*OF_REWARDS, *OF_LENGTHS}))
def test_the_order_of_groups_and_of_trajectories_in_them_does_not_matter(name):
    rewards, lengths = VALUES["rewards"], LENGTHS.astype(float)
    order = np.arange(12).reshape(3, 4)[[2, 0, 1]][:, [3, 1, 0, 2]].ravel()
    np.testing.assert_allclose(
        _of(name, rewards[order], lengths[order], 4), _of(name, rewards, lengths, 4)[order]
    )


@pytest.mark.parametrize("group_size", [1, 3])
def test_rewards_that_are_not_whole_groups_are_refused(group_size):
    with pytest.raises(ValueError, match=f"8 rewards are not whole groups of {group_size}"):
        grpo(REWARDS, group_size)


def test_a_pair_is_the_best_and_the_worst_of_a_group_and_none_without_spread():
    rewards = np.array([0.5, 1.0, 1.0, 0.0, 0.0, 0.0, 0.3, 0.3, 0.3])
    expected = [-1, 1, 0, 0, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(pair(rewards[:3], 3), [-1, 1, 0])
    np.testing.assert_array_equal(pair(rewards, 3), expected)


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "rloo", "opo"])
def test_a_trajectory_that_could_not_be_judged_might_as_well_not_be_there(name):
    size, judged, groups = 8, 5, 3
    for seed in range(5):
        random = np.random.default_rng(seed)
        kept = [size * i + np.sort(random.permutation(size)[:judged]) for i in range(groups)]
        kept = np.concatenate(kept)
        rewards, lengths = random.normal(size=groups * size), np.zeros(groups * size)
        lengths[kept] = random.integers(1, 9, kept.size)
        filled = without_unjudged(rewards, lengths, size)
        ours = _with_lengths(name, filled, lengths, size)[kept]
        alone = _of(name, rewards[kept], lengths[kept], judged)
        np.testing.assert_allclose(ours, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(OF_JUDGED))
def test_a_lone_trajectory_that_could_be_judged_is_compared_with_none(name):
    rewards, lengths = np.full(4, 0.7), np.array([0.0, 2.0, 0.0, 0.0])
    np.testing.assert_array_equal(_with_lengths(name, rewards, lengths, 4), 0)
    np.testing.assert_array_equal(_with_lengths(name, rewards, 0 * lengths, 4), 0)


def test_a_pair_is_made_of_trajectories_that_could_be_judged():
    rewards, lengths = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(_with_lengths("pair", rewards, lengths, 4), [0, 0, 1, -1])


@pytest.mark.gate
@pytest.mark.parametrize("name", sorted(OF_JUDGED))
def test_where_all_could_be_judged_lengths_change_no_bit(name):
    for size in (3, 7, 8):
        rewards = np.random.default_rng(size).normal(size=50 * size).astype(np.float32)
        lengths = np.resize(np.float32([1, 5, 3]), rewards.size)
        given = rewards, lengths, size
        np.testing.assert_array_equal(_with_lengths(name, *given), _of(name, *given))
    with jax.disable_jit():
        np.testing.assert_array_equal(_with_lengths(name, *given), _of(name, *given))
