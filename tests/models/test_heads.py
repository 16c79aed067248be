"""A scalar head reads the last hidden states of any family."""

import jax
import numpy as np
import pytest

from rl_sync.models import heads
from rl_sync.models.transformer import hidden_states
from tests.models import tiny

TOKENS = np.array([[3, 1, 4, 1, 5], [2, 7, 1, 0, 0]], np.int32)


@pytest.mark.nightly
@pytest.mark.samples("plain", "experts")
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_scalars_are_the_heads_product_with_the_hidden_states(name):
    config = tiny.VARIANTS[name]
    params = heads.with_scalar_head(config, tiny.params(config), jax.random.key(3))
    params[heads.HEAD]["bias"] = np.float32(0.5)
    scalars = jax.jit(heads.token_scalars, static_argnums=0)(config, params, TOKENS)
    assert scalars.shape == (2, 5)
    base = {name: leaf for name, leaf in params.items() if name != heads.HEAD}
    hidden = hidden_states(config, base, TOKENS)
    expected = np.asarray(hidden) @ np.asarray(params[heads.HEAD]["kernel"]) + 0.5
    np.testing.assert_allclose(scalars, expected, rtol=1e-4, atol=1e-5)
    last = heads.last_scalars(scalars, np.array([5, 3]))
    np.testing.assert_array_equal(last, [scalars[0, 4], scalars[1, 2]])


@pytest.mark.gate
def test_a_new_head_is_small_random_and_trains_with_the_model():
    config = tiny.CONFIG
    params = heads.with_scalar_head(config, tiny.params(), jax.random.key(3))
    other = heads.with_scalar_head(config, tiny.params(), jax.random.key(4))
    kernel = np.asarray(params[heads.HEAD]["kernel"])
    assert 0.1 < np.linalg.norm(kernel) < 3
    assert not np.array_equal(kernel, other[heads.HEAD]["kernel"])

    def loss(params):
        return (heads.token_scalars(config, params, TOKENS) ** 2).sum()

    gradient = jax.jit(jax.grad(loss))(params)
    assert all(float(np.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))
