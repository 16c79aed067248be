"""The digest depends on every bit, place, shape and dtype, and on no sharding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rl_sync.weights.digest import digest


def bits_of(value: float) -> jax.Array:
    return jnp.array([value], jnp.float32)


PARAMS = {
    "w": jnp.arange(24, dtype=jnp.float32).reshape(4, 6),
    "b": jnp.linspace(-1, 1, 7, dtype=jnp.bfloat16),
    "n": jnp.arange(5, dtype=jnp.int32),
    "m": jnp.array([True, False, True]),
    "s": jnp.float32(0.5),
}


def test_it_is_a_number_that_does_not_change_between_processes_and_releases():
    assert digest({"w": jnp.arange(4, dtype=jnp.float32)}) == "1e023f0597ac763a"
    assert digest({}) == "0000000000000000"


@pytest.mark.parametrize("name", PARAMS)
def test_any_single_bit_of_any_dtype_shows(name):
    leaf = np.asarray(PARAMS[name])
    if leaf.dtype == bool:
        changes = [np.where(np.arange(leaf.size) == i, ~leaf, leaf) for i in range(leaf.size)]
    else:
        raw = leaf.reshape(-1).view(np.uint8)
        changes = []
        for bit in range(raw.size * 8):
            flipped = raw.copy()
            flipped[bit // 8] ^= 1 << bit % 8
            changes.append(flipped.view(leaf.dtype).reshape(leaf.shape))
    seen = {digest(PARAMS)} | {digest({**PARAMS, name: jnp.asarray(x)}) for x in changes}
    assert len(seen) == 1 + len(changes)


def test_swapped_shifted_and_missing_elements_show():
    x = jnp.array([1.0, 2.0, 4.0, 0.0, 0.0, -0.0], jnp.float32)
    variants = [
        x,
        x[::-1],
        jnp.roll(x, 1),
        x[:-1],
        x.at[jnp.array([0, 1])].set(x[jnp.array([1, 0])]),
    ]
    variants += [x.reshape(2, 3), x.reshape(3, 2), x.reshape(2, 3).T, x.astype(jnp.bfloat16)]
    assert len({digest([v]) for v in variants}) == len(variants)


def test_all_transpositions_of_powers_of_two_show():
    x = 2.0 ** np.arange(16, dtype=np.float32)  # their bits differ in few, high places
    seen = {digest([x])}
    for i in range(16):
        for j in range(i):
            y = x.copy()
            y[[i, j]] = y[[j, i]]
            seen.add(digest([y]))
    assert len(seen) == 1 + 16 * 15 // 2


def test_swapped_renamed_and_missing_leaves_show():
    a, b = jnp.zeros(3), jnp.ones(3)
    trees = [
        {"a": a, "b": b},
        {"a": b, "b": a},
        {"a": a, "c": b},
        {"a": a},
        {"x": {"a": a, "b": b}},
    ]
    trees += [{"a": a, "b": b, "c": jnp.zeros((0,))}, [a, b]]
    assert len({digest(tree) for tree in trees}) == len(trees)


def test_bits_count_and_not_values():
    nans = [np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001)]
    assert digest(nans[0]) != digest(nans[1])
    assert digest(bits_of(0.0)) != digest(bits_of(-0.0))


@pytest.mark.gate
@pytest.mark.parametrize("spec", [P(), P("a"), P(None, "b"), P("b", "a"), P(("a", "b"))])
def test_the_sharding_does_not_show(spec):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    x = jax.random.normal(jax.random.key(0), (8, 12))
    y = jnp.arange(4)  # Of it only one device has something to add.

    def put(leaf, spec):
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    sharded = [put(x, spec), put(y, P()), put(-x, P("a")), put(2 * x, spec)]
    assert digest(sharded) == digest([x, y, -x, 2 * x])


@pytest.mark.parametrize("leaf", [jnp.zeros(2, jnp.complex64), jax.random.key(0)])
def test_dtypes_without_plain_bits_are_refused(leaf):
    with pytest.raises(TypeError, match=r"Parameter \['rng'\] has dtype"):
        digest({"rng": leaf})
