"""Copies are new arrays, and are made while the caller goes on."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.weights.copies import copied, cut_out


def test_a_copy_outlives_the_donation_of_what_was_copied():
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    params = {"w": jnp.arange(1000.0), "n": jnp.int32(3), "e": jnp.zeros((0, 2), jnp.bool_)}
    copies = copied(params)
    overwrite({"w": params["w"], "n": params["n"]})
    np.testing.assert_array_equal(copies["w"], np.arange(1000.0))
    assert (int(copies["n"]), copies["e"].dtype) == (3, bool)


def test_a_copy_lies_where_the_original_does():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    x = jax.device_put(np.zeros((4, 6)), NamedSharding(mesh, PartitionSpec(None, "x")))
    assert copied([x])[0].sharding == x.sharding


def test_regions_are_copied_out_of_arrays_even_where_they_are_the_whole():
    x, y = jnp.arange(24).reshape(4, 6), jnp.int32(7)
    cuts = ((0, ((1, 3), (2, 6))), (1, ()), (0, ((0, 4), (0, 6))))
    part, scalar, whole = cut_out([x, y], cuts)
    np.testing.assert_array_equal(part, x[1:3, 2:6])
    np.testing.assert_array_equal(whole, x)
    assert int(scalar) == 7
    assert whole.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()


@pytest.mark.gate
@pytest.mark.parametrize("copy", [copied, lambda x: cut_out([x], ((0, ((0, x.size),)),))[0]])
def test_the_caller_does_not_wait_for_a_copy(copy):
    x = jnp.ones((64 << 20,), jnp.uint8)
    jax.block_until_ready(copy(x))

    def timed(ready) -> float:
        start = time.perf_counter()
        ready(copy(x))
        return time.perf_counter() - start

    dispatched = min(timed(lambda copies: None) for _ in range(5))
    assert dispatched < min(timed(jax.block_until_ready) for _ in range(5)) / 3
