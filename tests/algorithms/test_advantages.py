import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms.advantages import ADVANTAGES, dr_grpo, grpo, rloo
from tests.algorithms.golden import GROUP_SIZE, MASK, VALUES

REWARDS = jnp.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])


def test_by_hand():
    np.testing.assert_allclose(
        dr_grpo(REWARDS, 4), [0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0], atol=1e-12
    )
    np.testing.assert_allclose(grpo(REWARDS, 4), [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(rloo(REWARDS, 4), [1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0])


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantages_are_the_reference_s(name):
    ours = ADVANTAGES[name](jnp.asarray(VALUES["rewards"]), GROUP_SIZE)
    np.testing.assert_allclose(ours[:, None] * MASK, VALUES[f"adv/{name}"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_a_group_does_not_see_the_others(name):
    alone = ADVANTAGES[name](REWARDS[:4], 4)
    np.testing.assert_allclose(alone, ADVANTAGES[name](REWARDS, 4)[:4])


@pytest.mark.parametrize("group_size", [1, 3])
def test_rewards_that_are_not_whole_groups_are_refused(group_size):
    with pytest.raises(ValueError, match=f"8 rewards are not whole groups of {group_size}"):
        grpo(REWARDS, group_size)
