import jax.numpy as jnp
import numpy as np

from rl_sync.algorithms import aggregation
from rl_sync.algorithms.preference import dpo
from rl_sync.algorithms.values import clipped_value_loss
from tests.algorithms.golden import MASK, VALUES, assert_is_reference


def test_the_clipped_value_loss_is_the_reference_s():
    def loss_of(values):
        losses = clipped_value_loss(values, VALUES["values"], VALUES["ret/gae"], 0.2)
        return aggregation.token_mean(losses, MASK)

    assert_is_reference(loss_of, "value_clip_0.2", argument="new_values")


def test_the_clipped_value_loss_by_hand():
    """From 0 to 1 counts as 0.2: ½ · max(0, 0.8²) for a return of 1, ½ · max(1, 0.04) for 0."""
    losses = clipped_value_loss(jnp.ones(2), jnp.zeros(2), jnp.array([1.0, 0.0]), 0.2)
    np.testing.assert_allclose(losses, [0.32, 0.5])


def test_dpo_by_hand():
    """Margins β · 0 and β · 2 with β = ½: log 2, and log(1 + e⁻¹)."""
    losses = dpo(jnp.array([-1.0, -1.0]), jnp.array([-2.0, -3.0]), jnp.array([-1.0, -2.0]),
                 jnp.array([-2.0, -2.0]), 0.5)  # fmt: skip
    np.testing.assert_allclose(losses, [np.log(2), np.log1p(np.exp(-1))])
