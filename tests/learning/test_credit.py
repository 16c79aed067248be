import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms import returns
from rl_sync.algorithms.algorithm import ADVANTAGES, ALGORITHMS
from rl_sync.learning import credit
from rl_sync.learning.objective import LossConfig
from rl_sync.types import Packing, Rows, TrainBatch

REWARDS = np.array([1.0, 0.0, 0.5, 0.5], np.float32)
MASK = np.array([[True, True, False], [True, True, True], [True, False, False], [True, True, True]])
END = 1
give = jax.jit(credit.give, static_argnames="loss")
TOKENS = np.array([[2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, END]], np.int32)
"""The second completion is cut at 3 tokens, the last one ends there."""
BEHAVIOR = np.full((4, 3), -1.0, np.float32)
REF = np.full((4, 3), -1.5, np.float32)
ROWS = Rows(TOKENS, MASK, BEHAVIOR, policy_versions=np.zeros((4, 3), np.int32))


def _loss(algorithm, most_tokens, group_size=2):
    return LossConfig(algorithm, group_size, most_tokens, (END,), 0)


# Of the first group both are right, and one is short; of the second one is right.
PARTS = np.array([[1.0, 0.5], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32)
OUTCOME = (1.0, 0.0)
SHAPED = PARTS @ np.float32([1.0, 0.1])


def _shaped(weights=OUTCOME, parts=PARTS, rewards=SHAPED, name="grpo", **change):
    algorithm = dataclasses.replace(ALGORITHMS[name], **change)
    loss = dataclasses.replace(_loss(algorithm, 3), outcome_weights=weights)
    return give(loss, TrainBatch(ROWS, jnp.array(rewards), parts=jnp.array(parts)))


@pytest.mark.gate
def test_a_filter_leaves_out_groups_whose_rewards_differ_by_their_shaping_alone():
    given, weights, metrics = _shaped()
    np.testing.assert_allclose(given.advantages[:2, 0], [0.7071, -0.7071], atol=1e-3)
    np.testing.assert_array_equal(weights[:, 0], 1)
    # All advantages have the same size, and the groups have 5 and 4 tokens.
    np.testing.assert_allclose(metrics["shaped_advantages"], 5 / 9, atol=1e-4)
    _, weights, metrics = _shaped(filter="outcome")
    np.testing.assert_array_equal(weights[:, 0], [0, 0, 1, 1])
    assert metrics["shaped_advantages"] == 0
    _, weights, metrics = _shaped(weights=(0.0, 0.1), filter="length_band")
    np.testing.assert_array_equal(weights[:, 0], [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(0.6, 2.0, [0, 0]), (0.0, 0.6, [0, 1]), (0.0, 0.4, [0, 0])]
)
def test_bounds_are_of_the_outcome_that_groups_are_filtered_by(low, high, kept):
    bounds = {"group_mean_low": low, "group_mean_high": high}
    _, weights, _ = _shaped(filter="outcome", **bounds)
    np.testing.assert_array_equal(weights[:, 0], np.repeat(kept, 2))


@pytest.mark.gate
def test_the_outcome_is_without_the_penalty_of_overlong_completions():
    """The second completion of the first group is cut, which costs it 1."""
    overlong = {"rewards": np.ones(4, np.float32), "weights": (), "overlong_tokens": 1}
    _, weights, metrics = _shaped(**overlong)
    np.testing.assert_array_equal(weights[:, 0], 1)
    np.testing.assert_allclose(metrics["shaped_advantages"], 1)
    _, weights, metrics = _shaped(**overlong, filter="outcome")
    np.testing.assert_array_equal(weights[:, 0], 0)
    assert metrics["shaped_advantages"] == 0


def test_a_reward_without_shaping_has_no_share_of_it():
    assert "shaped_advantages" not in _shaped(weights=())[2]


@pytest.mark.parametrize("placeholder", [0.0, 9.0])
def test_advantages_by_parts_leave_out_what_could_not_be_judged(placeholder):
    """The pairs that are left have A = ±1/√2 · (1 + ½) and ±1/√2 · ½, or 0 alone in a group."""
    algorithm = dataclasses.replace(ALGORITHMS["gdpo"], filter="outcome")
    loss = dataclasses.replace(
        _loss(algorithm, 3), outcome_weights=(1.0, 0.0), part_weights=(1.0, 0.5)
    )
    parts = np.float32([[1, 0.1], [0, 0], [placeholder, placeholder], [1, 7]])
    rows = ROWS._replace(completion_mask=MASK & np.array([[True], [True], [False], [True]]))
    batch = TrainBatch(rows, parts @ np.float32([1, 0.5]), parts=parts)
    given, weights, _ = give(loss, batch)
    # Whitened, with the sample variance of 3 trajectories, of which one has 0.
    np.testing.assert_allclose(given.advantages[:, 0], [1, -1, 0, 0], rtol=1e-5)
    np.testing.assert_array_equal(weights[:, 0], [1, 1, 0, 0])


def _give(ref_logprobs=None, baselines=None, values=None, **change):
    algorithm = dataclasses.replace(ALGORITHMS["dr_grpo"], **change)
    return _of(algorithm, baselines, ref_logprobs=ref_logprobs, values=values)


def _of(algorithm, baselines=None, group_size=2, **known):
    batch = TrainBatch(ROWS, REWARDS, baselines)
    return give(_loss(algorithm, 3, group_size), batch, **known)


@pytest.mark.gate
def test_every_trajectory_of_whole_groups_has_its_advantage_and_counts():
    given, weights, metrics = _give()
    np.testing.assert_allclose(given.advantages[:, 0], [0.5, -0.5, 0, 0])
    np.testing.assert_array_equal(weights, 1)
    assert (metrics["groups_without_spread"], metrics["left_out_fraction"]) == (0.5, 0)


@pytest.mark.gate
@pytest.mark.parametrize(("group_size", "kl"), [(2, 0.0), (1, 0.0), (1, 0.1)])
def test_trajectories_are_compared_with_those_of_their_role_whatever_their_group(group_size, kl):
    """Rewards 1, 0 and ½, ½ of 2, 3, 1 and 3 tokens, each of which diverges by ½ nat."""
    change = {"advantage": "rae", "kl_coefficient": kl, "kl_estimator": "k1", "kl_place": "reward"}
    algorithm = dataclasses.replace(ALGORITHMS["dr_grpo"], **change)
    batch = TrainBatch(ROWS, REWARDS, roles=np.array([0, 1, 1, 0]))
    given, weights, metrics = give(_loss(algorithm, 3, group_size), batch, ref_logprobs=REF)
    # The difference of a role's rewards, less that of the tokens.
    first, second = 0.5 - kl * 0.5 * (2 - 3), -0.5 - kl * 0.5 * (3 - 1)
    expected = np.array([first, second, -second, -first]) / 2
    np.testing.assert_allclose(metrics[credit.ADVANTAGES_NAME], expected, rtol=1e-5)
    np.testing.assert_allclose(given.advantages[:, 0], expected, rtol=1e-5)
    np.testing.assert_array_equal(weights, 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, [0.5, -0.5, 0, 0]),
        # Rewards at the last tokens, discounted by a half: the mean of 1, ½ and so on.
        ({"advantage": "reinforce_pp", "discount": 0.5, "whiten": False}, None),
    ],
)
def test_the_advantage_of_a_trajectory_is_the_mean_of_its_tokens(change, expected):
    given, _, metrics = _give(**change)
    means = np.where(MASK, given.advantages, 0).sum(axis=1) / MASK.sum(axis=1)
    np.testing.assert_allclose(metrics[credit.ADVANTAGES_NAME], means, atol=1e-6)
    if expected is not None:
        np.testing.assert_allclose(means, expected)


def test_overlong_completions_have_their_reward_lowered():
    """A margin of 2 of 3 tokens: −½ at 2 tokens, −1 at 3, nothing at 1."""
    given, _, metrics = _give(overlong_tokens=2)
    np.testing.assert_allclose(given.advantages[:, 0], [0.75, -0.75, 0.5, -0.5])
    assert metrics["reward_mean"] == 0.5, "what is reported is what was earned"


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"mask_truncated": True}, [1, 0, 1, 1]),
        ({"filter_zero_variance": True}, [1, 1, 0, 0]),
        ({"group_mean_low": 0.6}, [0, 0, 0, 0]),
        ({"group_mean_high": 0.5}, [1, 1, 0, 0]),
        ({"group_mean_high": 0.5, "advantage": "reinforce_pp"}, [1, 1, 1, 1]),
        ({"extremes": 2}, [1, 1, 1, 1]),
    ],
)
def test_what_is_left_out_has_no_weight(change, kept):
    _, weights, metrics = _give(**change)
    np.testing.assert_array_equal(weights[:, 0], kept)
    tokens = np.asarray(MASK.sum(axis=1))
    left_out = 1 - (tokens * kept).sum() / tokens.sum()
    np.testing.assert_allclose(metrics["left_out_fraction"], left_out, atol=1e-6)


@pytest.mark.gate
def test_a_divergence_in_the_reward_is_summed_over_a_trajectory():
    """k1 = ½ a token: 2 and 3 tokens, and 1 and 3, at β = 0.1."""
    given, _, _ = _give(REF, kl_coefficient=0.1, kl_estimator="k1", kl_place="reward")
    np.testing.assert_allclose(given.advantages[:, 0], [0.525, -0.525, 0.05, -0.05], atol=1e-6)
    unchanged, _, _ = _give(REF, kl_coefficient=0.1, kl_estimator="k1", kl_place="loss")
    np.testing.assert_allclose(unchanged.advantages[:, 0], [0.5, -0.5, 0, 0], atol=1e-6)


@pytest.mark.gate
def test_reinforce_pp_takes_the_divergence_from_each_token_s_reward():
    given, _, _ = _give(REF, advantage="reinforce_pp", kl_coefficient=0.1, kl_estimator="k1",
                        kl_place="reward")  # fmt: skip
    returns = np.array([0.9, 0.95, -0.15, -0.1, -0.05, 0.45, 0.35, 0.4, 0.45])
    expected = (returns - returns.mean()) / returns.std(ddof=1)
    np.testing.assert_allclose(np.asarray(given.advantages)[np.asarray(MASK)], expected, rtol=1e-5)


@pytest.mark.gate
def test_remax_compares_with_the_greedy_completion():
    """Rewards 1, 0, ½, ½ and a divergence of ½ a token at β = 0.1, from each token on."""
    baselines = jnp.array([0.25, 0.25, 1.0, 1.0])
    given, _, _ = _give(baselines=baselines, advantage="remax")
    for row, advantage in enumerate([0.75, -0.25, -0.5, -0.5]):
        np.testing.assert_allclose(given.advantages[row][MASK[row]], advantage)
    with_kl = {"kl_coefficient": 0.1, "kl_estimator": "k1", "kl_place": "reward"}
    given, _, _ = _give(REF, baselines, advantage="remax", **with_kl)
    np.testing.assert_allclose(given.advantages[1], [-0.4, -0.35, -0.3], atol=1e-6)


def test_the_weight_of_the_divergence_may_be_given():
    held = {"kl_coefficient": 9.0, "kl_estimator": "k1", "kl_place": "reward"}
    algorithm = dataclasses.replace(ALGORITHMS["dr_grpo"], **held)
    given, _, _ = _of(algorithm, ref_logprobs=REF, kl_coefficient=jnp.array(0.1))
    np.testing.assert_allclose(given.advantages[:, 0], [0.525, -0.525, 0.05, -0.05], atol=1e-6)


@pytest.mark.gate
def test_with_values_there_is_an_advantage_and_a_return_a_token():
    """γ = 1 and λ = ½, V = ¼ everywhere: at the last token r − ¼, before it half of what follows
    and δ = 0.
    """
    given, _, metrics = _give(values=jnp.full((4, 3), 0.25), advantage="gae", gae_lambda=0.5,
                           whiten=False)  # fmt: skip
    last = np.asarray(REWARDS) - 0.25
    expected = np.array([
        [last[0] / 2, last[0], 0],
        [last[1] / 4, last[1] / 2, last[1]],
        [last[2], 0, 0],
        [last[3] / 4, last[3] / 2, last[3]],
    ])  # fmt: skip
    np.testing.assert_allclose(given.advantages, expected, atol=1e-6)
    np.testing.assert_allclose(given.returns, np.where(MASK, expected + 0.25, 0), atol=1e-6)
    assert metrics["value_mean"] == 0.25
    np.testing.assert_allclose(metrics["explained_variance"], 0, atol=1e-6)


@pytest.mark.gate
def test_a_return_of_one_step_is_the_value_that_comes_next_or_the_reward_at_the_end():
    values = jnp.linspace(-1, 1, 12).reshape(4, 3)
    given, _, _ = _give(values=values, advantage="n_step", n_steps=1, whiten=False, discount=0.5)
    r, v = np.asarray(REWARDS), np.asarray(values)
    expected = np.array([
        [v[0, 1] / 2, r[0], 0],
        [v[1, 1] / 2, v[1, 2] / 2, r[1]],
        [r[2], 0, 0],
        [v[3, 1] / 2, v[3, 2] / 2, r[3]],
    ])  # fmt: skip
    np.testing.assert_allclose(given.returns, expected, atol=1e-6)
    np.testing.assert_allclose(given.advantages, np.where(MASK, expected - v, 0), atol=1e-6)


@pytest.mark.gate
def test_advantages_from_values_are_whitened_over_all_tokens_and_returns_are_not():
    values = jnp.linspace(-1, 1, 12).reshape(4, 3)
    plain, _, _ = _give(values=values, advantage="gae", whiten=False)
    given, _, metrics = _give(values=values, advantage="gae")
    mask = np.asarray(MASK)
    raw = np.asarray(plain.advantages)[mask]
    expected = (raw - raw.mean()) / raw.std(ddof=1)
    np.testing.assert_allclose(np.asarray(given.advantages)[mask], expected, rtol=1e-5)
    np.testing.assert_array_equal(given.returns, plain.returns)
    assert abs(float(metrics["advantage_mean"])) < 1e-6


@pytest.mark.gate
def test_values_need_no_group_to_compare_with():
    values = jnp.zeros((4, 3))
    alone, _, metrics = _of(ALGORITHMS["ppo"], group_size=1, values=values)
    together, _, _ = _of(ALGORITHMS["ppo"], group_size=2, values=values)
    np.testing.assert_array_equal(alone.advantages, together.advantages)
    assert metrics["groups_without_spread"] == 1


TURNS = Rows(
    tokens=jnp.full((2, 6), 2),
    completion_mask=jnp.array(
        [[False, True, True, False, True, True], [False, True, False, True, False, True]]
    ),
    behavior_logprobs=jnp.full((2, 6), -1.0),
    policy_versions=jnp.zeros((2, 6), jnp.int32),
    turn_rewards=jnp.array([[0, 0, 0.5, 0, 0, 0.25], [0, 1.0, 0, 0, 0, 0]]),
)
"""Two replies of two tokens, which earn ½ and ¼; three of one token, of which the first earns 1."""


def _given_turns(rewards=(1.75, 1.0), **change):
    algorithm = dataclasses.replace(ALGORITHMS["dr_grpo"], **change)
    batch = TrainBatch(TURNS, jnp.array(rewards))
    estimate, _, _ = give(_loss(algorithm, 6), batch)
    return np.asarray(estimate.advantages)


@pytest.mark.gate
def test_rewards_of_turns_stand_at_the_ends_of_replies_and_the_rest_at_the_last_token():
    """The first episode earns 1 at its end, beside ¼ for its last reply."""
    given = _given_turns(advantage="reinforce_pp", whiten=False)
    returns = np.array([[1.75, 1.75, 1.25, 1.25], [1.0, 0.0, 0.0]], object)
    drawn = np.concatenate([np.array(row) for row in returns])
    expected = (drawn - drawn.mean()) / drawn.std(ddof=1)
    mask = np.asarray(TURNS.completion_mask)
    np.testing.assert_allclose(given[mask], expected, atol=1e-4)
    assert not given[~mask].any()


PARENT = Rows(
    tokens=jnp.full((2, 8), 2),
    completion_mask=jnp.array([[0, 1, 1, 0, 1, 0, 1, 1], [0, 1, 0, 1, 0, 0, 0, 0]], bool),
    behavior_logprobs=jnp.full((2, 8), -1.0),
    policy_versions=jnp.zeros((2, 8), jnp.int32),
    turn_rewards=jnp.array([[0, 0, 0.25, 0, 0, 0, 0, 0.5], [0, 2, 0, 0, 0, 0, 0, 0]]),
    packing=Packing(
        positions=jnp.array([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 0, 0, 0]]),
        trajectories=jnp.array([[0] * 8, [1] * 4 + [-1] * 4]),
        segments=jnp.array([[0] * 5 + [1] * 3, [8] * 4 + [-1] * 4]),
    ),
)
"""A parent's first reply earns ¼, its sub-agent's reply, in a segment of its own, ½, and the
outcome is 1. The other episode has one segment, where a reply earns 2, with the outcome −1.
"""


@pytest.mark.gate
@pytest.mark.parametrize(("discount", "turn_discount"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5)])
def test_the_returns_of_a_segment_are_its_own_turns_and_the_outcome(discount, turn_discount):
    algorithm = dataclasses.replace(
        ALGORITHMS["ppo"],
        whiten=False,
        gae_lambda=1.0,
        discount=discount,
        turn_discount=turn_discount,
    )
    batch = TrainBatch(PARENT, jnp.array([1.75, 1.0]))
    values = jnp.where(PARENT.completion_mask, 0.125, 0.0)
    expected = {
        True: {
            (1.0, 1.0): [1.25, 1.25, 1, 1.5, 1.5, 1, -1],
            (0.5, 1.0): [0.375, 0.75, 1, 0.75, 1.5, 1.5, -1],
            (1.0, 0.5): [0.75, 0.75, 1, 1.5, 1.5, 1.5, -1],
        },
        False: {(1.0, 1.0): [1.75, 1.75, 1.5, 1.5, 1.5, 1, -1]},
    }
    for segment_returns, by_discount in expected.items():
        if (discount, turn_discount) in by_discount:
            loss = _loss(dataclasses.replace(algorithm, segment_returns=segment_returns), 8)
            given, weights, _ = give(loss, batch, values=values)
            of = np.asarray(by_discount[discount, turn_discount])
            mask = np.asarray(PARENT.completion_mask)
            np.testing.assert_allclose(np.asarray(given.returns)[mask], of, rtol=1e-6)
            np.testing.assert_allclose(np.asarray(given.advantages)[mask], of - 0.125, rtol=1e-6)
            np.testing.assert_array_equal(np.asarray(weights)[mask], 1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["gae", "n_step", "reinforce_pp"])
def test_a_segment_has_the_advantages_of_an_episode_of_its_own(name):
    """The two segments of the first episode are one trajectory, or two with the same outcome."""
    algorithm = dataclasses.replace(
        ALGORITHMS["ppo"], advantage=name, segment_returns=True, n_steps=2, discount=0.75
    )
    values = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8)), jnp.float32)
    together, _, _ = give(_loss(algorithm, 8), TrainBatch(PARENT, jnp.array([1.75, 1.0])),
                          values=values)  # fmt: skip
    trajectories = jnp.array([[0] * 5 + [1] * 3, [2] * 4 + [-1] * 4])
    packing = PARENT.packing._replace(trajectories=trajectories)
    apart = TrainBatch(PARENT._replace(packing=packing), jnp.array([1.25, 1.5, 1.0]))
    for change in ({}, {"segment_returns": False}):
        loss = _loss(dataclasses.replace(algorithm, **change), 8, group_size=1)
        alone, _, _ = give(loss, apart, values=values)
        np.testing.assert_allclose(together.advantages, alone.advantages, rtol=1e-6)


@pytest.mark.gate
@pytest.mark.gate
def test_turns_are_discounted_between_replies_and_not_within_one():
    """½ + γ · 1¼ = 1.125 against 1, whose mean is 1.0625."""
    given = _given_turns(turn_discount=0.5)
    np.testing.assert_allclose(given[:, 0], [0.0625, -0.0625])


@pytest.mark.parametrize(
    ("rewards", "has_spread"),
    [((1.75, 1.75), True), ((1.75, 1.5), False)],  # Returns 1.125, 1.1875; and twice 1.125.
)
def test_groups_are_left_out_by_the_returns_that_are_compared(rewards, has_spread):
    algorithm = dataclasses.replace(
        ALGORITHMS["dr_grpo"], turn_discount=0.5, filter_zero_variance=True
    )
    batch = TrainBatch(TURNS, jnp.array(rewards))
    given, weights, metrics = give(_loss(algorithm, 6), batch)
    np.testing.assert_array_equal(weights, np.full(weights.shape, has_spread))
    assert metrics["groups_without_spread"] == 1 - has_spread
    assert np.asarray(given.advantages).any() == has_spread


@pytest.mark.gate
@pytest.mark.gate
def test_discounted_returns_of_tokens_fall_at_the_ends_of_replies():
    mask = TURNS.completion_mask
    rewards = jnp.zeros((2, 6)).at[0, 5].set(1.0).at[1, 5].set(1.0)
    discount = returns.at_turns(0.9, 0.5, mask)
    found = returns.discounted(rewards, mask, discount)
    expected = [[0, 0.9 * 0.45 * 0.9, 0.45 * 0.9, 0, 0.9, 1], [0, 0.45**2, 0, 0.45, 0, 1]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.gate
def test_episodes_that_a_limit_cut_have_no_weight_where_that_is_asked_for():
    algorithm = dataclasses.replace(ALGORITHMS["dr_grpo"], mask_truncated=True)
    batch = TrainBatch(TURNS, jnp.array([1.0, 0.0]), truncated=jnp.array([False, True]))
    _, weights, metrics = give(_loss(algorithm, 4), batch)
    np.testing.assert_array_equal(np.asarray(weights)[:, 0], [1, 0])
    assert metrics["truncated_fraction"] == 0.5


UNJUDGED = Rows(
    TOKENS,
    np.array([[False] * 3, [True, False, False], [True, True, False], [True, True, True]]),
    BEHAVIOR,
    np.zeros((4, 3), np.int32),
)
"""A group whose first completion could not be judged; the others have 1, 2 and 3 tokens."""


def _of_judged(
    name="dr_grpo",
    placeholder=0.0,
    rows=UNJUDGED,
    judged=(1.0, 0.0, 0.0),
    ref_logprobs=None,
    **change,
):
    rewards = np.array([placeholder, *judged], np.float32)
    algorithm = dataclasses.replace(ALGORITHMS["dr_grpo"], advantage=name, whiten=False, **change)
    batch = TrainBatch(rows, rewards, baselines=np.full(4, 0.25, np.float32))
    _, weights, metrics = give(
        _loss(algorithm, 3, group_size=4),
        batch,
        ref_logprobs=ref_logprobs,
        values=np.zeros((4, 3), np.float32),
    )
    return weights, metrics


@pytest.mark.gate
def test_a_completion_that_could_not_be_judged_moves_no_advantage(subtests):
    """The mean of 1, 0, 0 is ⅓ and their variance ⅓; over their 6 tokens it is ⅙, and so is the
    variance of rewards and of deviations.
    """
    of_tokens = [5 / 6**0.5, -1 / 6**0.5, -1 / 6**0.5]
    expected = {
        "grpo": [2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5],
        "dr_grpo": [2 / 3, -1 / 3, -1 / 3],
        "gdpo": [2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5],  # Their variance is 1.
        "rloo": [1, -0.5, -0.5],
        "opo": [5 / 6, -1 / 6, -1 / 6],
        "rae": [2 / 3, -1 / 3, -1 / 3],
        "reinforce_pp": of_tokens,
        "reinforce_pp_baseline": of_tokens,
        "remax": [0.75, -0.25, -0.25],
        "best": [1, 0, 0],
        "none": [0, 0, 0],
        "pair": [1, -1, 0],
        "demonstration": [1, 1, 1],
        "preference": [-1, -1, -1],  # The first of a pair is preferred; data have no rewards.
        "gae": [1, 0, 0],
        "n_step": [1, 0, 0],
    }
    assert {*expected} == {*ADVANTAGES}
    for name, of in expected.items():
        with subtests.test(name):
            for placeholder in (0.0, 9.0):
                _, metrics = _of_judged(name, placeholder)
                np.testing.assert_allclose(metrics[credit.ADVANTAGES_NAME], [0, *of], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # Rewards 1, −½ and −1.
        ({"overlong_tokens": 2}, [7 / 6, -1 / 3, -5 / 6]),
        # A divergence of ½ a token: rewards 0.95, −0.1 and −0.15.
        (
            {"kl_coefficient": 0.1, "kl_estimator": "k1", "kl_place": "reward"},
            [0.95 - 0.7 / 3, -0.1 - 0.7 / 3, -0.15 - 0.7 / 3],
        ),
        ({"turn_discount": 0.5}, [2 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_nor_where_rewards_are_changed_before_they_are_compared(change, expected):
    rows = UNJUDGED
    if "turn_discount" in change:
        turns = np.zeros((4, 3), np.float32)
        turns[1, 0] = 1.0
        rows = UNJUDGED._replace(turn_rewards=turns)
    _, metrics = _of_judged(rows=rows, ref_logprobs=REF, **change)
    np.testing.assert_allclose(metrics[credit.ADVANTAGES_NAME], [0, *expected], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"extremes": 2}, [1, 1, 0]),
        ({"group_mean_high": 0.34, "group_mean_low": 0.33}, [1, 1, 1]),
        ({"group_mean_low": 0.34}, [0, 0, 0]),
    ],
)
def test_a_completion_that_could_not_be_judged_leaves_no_other_out(change, kept):
    weights, _ = _of_judged(placeholder=9.0, **change)
    np.testing.assert_array_equal(weights[1:, 0], kept)


def test_a_completion_that_could_not_be_judged_adds_no_spread():
    turns = np.where(UNJUDGED.completion_mask.cumsum(axis=1) == [[0], [1], [2], [3]], 1.0, 0.0)
    rows = UNJUDGED._replace(turn_rewards=turns.astype(np.float32))
    change = {"turn_discount": 0.5, "filter_zero_variance": True}
    weights, metrics = _of_judged(rows=rows, judged=(1.0, 1.0, 1.0), **change)
    np.testing.assert_array_equal(weights, 0)
    assert metrics["groups_without_spread"] == 1


def test_metrics_of_rewards_are_of_those_that_were_judged():
    """Groups of 2: the first judged in part, the second not at all, the third with a spread."""
    rewards = np.array([9.0, 1.0, 9.0, 9.0, 0.0, 0.5], np.float32)
    mask = np.array([[False], [True], [False], [False], [True], [True]])
    nothing = np.zeros((6, 1), np.int32)
    rows = Rows(nothing, mask, np.zeros((6, 1), np.float32), nothing)
    _, _, metrics = give(_loss(ALGORITHMS["rloo"], 3), TrainBatch(rows, rewards))
    found = [float(metrics[f"reward_{of}"]) for of in ("mean", "std", "min", "max")]
    np.testing.assert_allclose(found, [0.5, (1 / 6) ** 0.5, 0, 1], rtol=1e-6)
    assert metrics["groups_without_spread"] == 0.5
    expected = [0, 0, 0, 0, -0.5, 0.5]
    np.testing.assert_array_equal(metrics[credit.ADVANTAGES_NAME], expected)
