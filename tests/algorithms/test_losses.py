import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.algorithms import masking
from rl_sync.algorithms.corrections import truncated_token_weights
from rl_sync.algorithms.losses import is_clipped, ppo_clip, sft
from tests.algorithms.golden import CLIP, MASK, VALUES

DUAL_CLIP = 3.0


def _value_and_gradient(loss_of):
    return jax.value_and_grad(loss_of)(jnp.asarray(VALUES["logprobs"]))


def test_ppo_clip_is_the_reference_s():
    def loss_of(logprobs):
        old, advantages = VALUES["old_logprobs"], VALUES["adv/grpo"]
        losses = ppo_clip(logprobs, old, advantages, **CLIP, dual_clip=DUAL_CLIP)
        return masking.token_mean(losses, MASK)

    value, gradient = _value_and_gradient(loss_of)
    np.testing.assert_allclose(value, VALUES["loss/ppo_clip"], rtol=1e-6)
    np.testing.assert_allclose(gradient, VALUES["grad/ppo_clip"], atol=1e-6)


def test_ppo_clip_with_truncated_weights_is_the_reference_s():
    def loss_of(logprobs):
        old, advantages = VALUES["old_logprobs"], VALUES["adv/grpo"]
        weights = truncated_token_weights(old, VALUES["behavior_logprobs"], 2.0)
        losses = ppo_clip(logprobs, old, advantages, **CLIP, dual_clip=DUAL_CLIP)
        return masking.token_mean(losses * weights, MASK)

    value, gradient = _value_and_gradient(loss_of)
    np.testing.assert_allclose(value, VALUES["loss/ppo_clip_tis"], rtol=1e-6)
    np.testing.assert_allclose(gradient, VALUES["grad/ppo_clip_tis"], atol=1e-6)


def test_ppo_clip_by_hand():
    ratios = jnp.array([[2.0, 2.0, 0.5, 0.5, 1.1]])
    advantages = jnp.array([[1.0, -1.0, 1.0, -1.0, 3.0]])
    losses = ppo_clip(jnp.log(ratios), jnp.zeros_like(ratios), advantages, **CLIP)
    np.testing.assert_allclose(losses, [[-1.28, 2.0, -0.5, 0.8, -3.3]])
    bounded = ppo_clip(jnp.log(ratios), jnp.zeros_like(ratios), advantages, **CLIP, dual_clip=1.5)
    np.testing.assert_allclose(bounded, [[-1.28, 1.5, -0.5, 0.8, -3.3]])


def test_one_advantage_a_row_serves_all_its_tokens():
    logprobs, old = jnp.asarray(VALUES["logprobs"]), jnp.asarray(VALUES["old_logprobs"])
    rows = jnp.linspace(-1, 1, 12)[:, None]
    wide = jnp.broadcast_to(rows, logprobs.shape)
    np.testing.assert_array_equal(
        ppo_clip(logprobs, old, rows, **CLIP), ppo_clip(logprobs, old, wide, **CLIP)
    )


def test_a_clipped_token_has_no_gradient_and_any_other_has():
    old, advantages = VALUES["old_logprobs"], VALUES["adv/grpo"]

    def loss_of(logprobs):
        return ppo_clip(logprobs, old, advantages, **CLIP).sum()

    _, gradient = _value_and_gradient(loss_of)
    clipped = is_clipped(jnp.asarray(VALUES["logprobs"]), old, advantages, **CLIP)
    assert 0 < clipped.sum() < clipped.size
    np.testing.assert_array_equal(gradient == 0, (clipped == 1) | (advantages == 0))


def test_sft_is_the_negative_log_likelihood():
    np.testing.assert_array_equal(sft(jnp.array([[-0.5, -2.0]])), [[0.5, 2.0]])
