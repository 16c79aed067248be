"""Updates by an optimizer whose state is in host memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.opt_state import ShardedOptimizer
from rl_sync.learning.optimizer import OPTIMIZERS, rl_optimizer
from rl_sync.models.sharding import Layout
from tests.roles.trainer.tiny import OPTIMIZER

SHAPES = {"blocks": {"kernel": (3, 4, 2), "scale": (3, 4)}, "embedding": (5, 4)}


@pytest.mark.nightly
@pytest.mark.parametrize("only", [("blocks",), ("embedding",), tuple(SHAPES)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_in_host_memory_is_updated_as_on_the_devices(name, only):
    """By layers where the optimizer allows that: counts grow once an update."""
    config = dataclasses.replace(OPTIMIZER, name=name, warmup_updates=3, max_gradient_norm=0.5)
    layout, random = Layout.single(), np.random.default_rng(0)

    def drawn():
        shapes = {part: SHAPES[part] for part in only}
        return jax.tree.map(
            lambda shape: jax.device_put(random.normal(size=shape).astype("f4"), layout.repeated),
            shapes,
            is_leaf=lambda x: isinstance(x, tuple),
        )

    start, gradients = drawn(), [drawn() for _ in range(3)]
    abstract = jax.tree.map(lambda x: layout.abstract(x, ()), start)
    results = []
    for offloaded in (False, True):
        optimizer = ShardedOptimizer(rl_optimizer(config, 9), abstract, layout, offloaded)
        update = jax.jit(optimizer.update)
        params, state = start, optimizer.init(start)
        for gradient, learns in zip(gradients, (True, False, True), strict=True):
            params, state = update(params, state, gradient, jnp.array(learns))
        results.append((params, state))
        expected = jax.tree.map(lambda x: x.sharding.memory_kind, optimizer.abstract_state())
        assert jax.tree.map(lambda x: x.sharding.memory_kind, state) == expected
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), *results)
    moved = jax.tree.map(lambda a, b: float(abs(a - b).min()), results[1][0], start)
    assert min(jax.tree.leaves(moved)) > 0
