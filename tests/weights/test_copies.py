"""Copies are new arrays, and are made while the caller goes on."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.weights.copies import copier


def test_a_copy_outlives_the_donation_of_what_was_copied():
    copy = copier()
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    params = {"w": jnp.arange(1000.0), "n": jnp.int32(3), "e": jnp.zeros((0, 2), jnp.bool_)}
    copied = copy({"w": params["w"], "n": params["n"], "e": params["e"]})
    overwrite({"w": params["w"], "n": params["n"]})
    np.testing.assert_array_equal(copied["w"], np.arange(1000.0))
    assert (int(copied["n"]), copied["e"].dtype) == (3, bool)


def test_a_copy_lies_where_the_original_does():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    x = jax.device_put(np.zeros((4, 6)), NamedSharding(mesh, PartitionSpec(None, "x")))
    assert copier()([x])[0].sharding == x.sharding


def test_the_caller_does_not_wait_for_a_copy():
    copy, x = copier(), jnp.ones((64 << 20,), jnp.uint8)
    jax.block_until_ready(copy(x))

    def timed(ready) -> float:
        start = time.perf_counter()
        ready(copy(x))
        return time.perf_counter() - start

    dispatched = min(timed(lambda copied: None) for _ in range(5))
    assert dispatched < min(timed(jax.block_until_ready) for _ in range(5)) / 3
