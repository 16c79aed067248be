"""The platform that functions are traced for."""

import jax
import jax.numpy as jnp

from rl_sync.models.platform import compiling_for, platform


def test_it_is_that_of_the_devices_unless_named():
    assert platform() == jax.default_backend()
    with compiling_for("tpu"):
        assert platform() == "tpu"
    assert platform() == jax.default_backend()


def test_a_function_is_traced_once_for_each():
    traced = []

    @jax.jit
    def function(x):
        traced.append(platform())
        return x + 1

    for name in ("tpu", "gpu", "tpu"):
        with compiling_for(name):
            jax.eval_shape(function, jnp.zeros(2))
            function.lower(jnp.zeros(2))
    assert sorted(set(traced)) == ["gpu", "tpu"]
