import jax
import numpy as np

from rl_sync.algorithms import aggregation, losses
from rl_sync.algorithms.corrections import truncated_token_weights
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import CLIP, MASK, VALUES, assert_is_reference

ppo_clip = compiled(losses.ppo_clip, "dual_clip")
OLD, ADVANTAGES = VALUES["old_logprobs"], VALUES["adv/grpo"]
DUAL_CLIP = 3.0
RATIOS = np.array([[2.0, 2.0, 0.5, 0.5, 1.1]])
SIGNS = np.array([[1.0, -1.0, 1.0, -1.0, 3.0]])
EVEN = np.zeros_like(RATIOS)


def test_ppo_clip_is_the_reference_s():
    def loss_of(logprobs):
        values = losses.ppo_clip(logprobs, OLD, ADVANTAGES, **CLIP, dual_clip=DUAL_CLIP)
        return aggregation.token_mean(values, MASK)

    assert_is_reference(loss_of, "ppo_clip")


def test_ppo_clip_over_a_constant_length_is_the_reference_s():
    def loss_of(logprobs):
        values = losses.ppo_clip(logprobs, OLD, ADVANTAGES, **CLIP, dual_clip=DUAL_CLIP)
        return aggregation.constant_mean(values, MASK, 10, sequence_count=1)

    assert_is_reference(loss_of, "ppo_clip_dr")


def test_ppo_clip_with_truncated_weights_is_the_reference_s():
    def loss_of(logprobs):
        weights = truncated_token_weights(OLD, VALUES["behavior_logprobs"], 2.0)
        values = losses.ppo_clip(logprobs, OLD, ADVANTAGES, **CLIP, dual_clip=DUAL_CLIP)
        return aggregation.token_mean(values * weights, MASK)

    assert_is_reference(loss_of, "ppo_clip_tis")


def test_cispo_is_the_reference_s():
    def loss_of(logprobs):
        return aggregation.token_mean(losses.cispo(logprobs, OLD, ADVANTAGES, **CLIP), MASK)

    assert_is_reference(loss_of, "cispo")


def test_sapo_is_the_reference_s():
    def loss_of(logprobs):
        return aggregation.sequence_mean(losses.sapo(logprobs, OLD, ADVANTAGES, 1.0, 1.05), MASK)

    assert_is_reference(loss_of, "sapo")


def test_ppo_clip_by_hand():
    values = ppo_clip(np.log(RATIOS), EVEN, SIGNS, **CLIP)
    np.testing.assert_allclose(values, [[-1.28, 2.0, -0.5, 0.8, -3.3]])
    bounded = ppo_clip(np.log(RATIOS), EVEN, SIGNS, **CLIP, dual_clip=1.5)
    np.testing.assert_allclose(bounded, [[-1.28, 1.5, -0.5, 0.8, -3.3]])


def test_cispo_by_hand_bounds_the_weight_and_keeps_the_gradient():
    def loss_of(logprobs):
        return losses.cispo(logprobs, EVEN, SIGNS, **CLIP).sum()

    gradient = compiled(jax.grad(loss_of))(np.log(RATIOS))
    np.testing.assert_allclose(gradient, [[-1.28, 1.28, -0.8, 0.8, -3.3]])
    outside = compiled(losses.is_outside)(np.log(RATIOS), EVEN, **CLIP)
    np.testing.assert_array_equal(outside, [[True, True, True, True, False]])


def test_reinforce_by_hand():
    logprobs = np.array([[-0.5, -2.0]])
    ours = compiled(losses.reinforce)(logprobs, np.array([[3.0]]))
    np.testing.assert_array_equal(ours, [[1.5, 6.0]])


def test_sapo_by_hand_has_the_plain_gradient_at_the_old_policy_and_less_away_from_it():
    gradient = compiled(jax.grad(lambda logprobs: losses.sapo(logprobs, 0.0, 2.0, 1.0, 1.05)))
    np.testing.assert_allclose(gradient(np.log(1.0)), -2.0)
    gate = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(gradient(np.log(2.0)), -2.0 * 4 * gate * (1 - gate) * 2.0)


def test_dppo_by_hand_stops_where_the_probability_has_moved_too_far():
    """From 0.2 to 0.5 is too far up, from 0.5 to 0.2 too far down, from 0.01 to 0.05 is not, though
    that ratio is the greatest."""
    old = np.log(np.array([[0.2, 0.2, 0.5, 0.5, 0.01]]))
    new = np.log(np.array([[0.5, 0.5, 0.2, 0.2, 0.05]]))
    bounds = (0.15, 0.25)
    left = compiled(losses.has_left)(new, old, SIGNS, *bounds)
    np.testing.assert_array_equal(left, [[True, False, False, True, False]])

    def loss_of(logprobs):
        return losses.dppo(logprobs, old, SIGNS, *bounds, weight_limit=4.0).sum()

    gradient = compiled(jax.grad(loss_of))(new)
    np.testing.assert_allclose(gradient, [[0, 2.5, -0.4, 0, -12.0]], atol=1e-12)


def test_one_advantage_a_row_serves_all_its_tokens():
    logprobs = VALUES["logprobs"]
    rows = np.linspace(-1, 1, 12)[:, None]
    wide = np.broadcast_to(rows, logprobs.shape)
    np.testing.assert_array_equal(
        ppo_clip(logprobs, OLD, rows, **CLIP), ppo_clip(logprobs, OLD, wide, **CLIP)
    )


def test_a_clipped_token_has_no_gradient_and_any_other_has():
    logprobs = VALUES["logprobs"]

    def loss_of(logprobs):
        return losses.ppo_clip(logprobs, OLD, ADVANTAGES, **CLIP).sum()

    gradient = compiled(jax.grad(loss_of))(logprobs)
    clipped = compiled(losses.is_clipped)(logprobs, OLD, ADVANTAGES, **CLIP)
    assert 0 < clipped.sum() < clipped.size
    np.testing.assert_array_equal(gradient == 0, clipped | (ADVANTAGES == 0))


def test_sft_is_the_negative_log_likelihood():
    np.testing.assert_array_equal(compiled(losses.sft)(np.array([[-0.5, -2.0]])), [[0.5, 2.0]])


def test_demonstrations_by_hand():
    weights = compiled(losses.demonstration_weights)(np.log(np.array([[0.5, 0.9]])))
    np.testing.assert_allclose(weights, [[0.25, 0.09]])
    assert losses.mixed(2.0, 10.0, 0.25) == 4.0
