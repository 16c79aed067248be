"""Copies are new arrays, and are made while the caller goes on."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.weights import copies
from rl_sync.weights.copies import copied, cut_out, on_host


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


@pytest.mark.parametrize("pinned", [False, True])
def test_arrays_come_to_the_host_in_order_and_to_the_bit_also_by_pinned_memory(pinned, monkeypatch):
    monkeypatch.setattr(copies, "_IN_FLIGHT_BYTES", 50)
    devices = jax.devices()
    arrays = [
        jax.device_put(np.arange(n, n + size, dtype=np.int32), devices[n % 2])
        for n, size in enumerate([3, 0, 40, 1, 2, 5])
    ] + [jax.device_put(np.array([0x7FC1, 0x8000], np.uint16).view(jnp.bfloat16), devices[3])]
    there = list(on_host(iter(arrays), pinned=pinned))
    assert [x.tobytes() for x in there] == [np.asarray(x).tobytes() for x in arrays]
    assert all(x.flags.writeable == pinned for x in there), "copied out of pinned memory"


def test_few_bytes_are_in_flight_at_once(monkeypatch):
    monkeypatch.setattr(copies, "_IN_FLIGHT_BYTES", 100)
    started = []

    def arrays():
        for number in range(6):
            started.append(number)
            yield jnp.full(10, number, jnp.int32)

    ahead = [len(started) - int(x[0]) for x in on_host(arrays(), pinned=True)]
    assert ahead == [3, 3, 3, 3, 2, 1]


def test_arrays_of_a_cpu_come_to_the_host_without_a_copy():
    x = jnp.arange(1000)
    (there,) = on_host([x])
    assert there.ctypes.data == x.unsafe_buffer_pointer()
