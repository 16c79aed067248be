"""Weights of which few values change from version to version, and a mesh to place them on."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


@functools.cache
def weights(version: int) -> dict:
    """Makes version 0 at random; each later one differs from the one before in few values."""
    if version == 0:
        rng = np.random.default_rng(7)
        return {
            "layers": {"up": (rng.standard_normal((512, 384)) * 0.02).astype(jnp.bfloat16)},
            "scale": np.ones(33, jnp.bfloat16),
            "head": rng.standard_normal((64, 8)).astype(np.float32),
            "step": np.int32(0),
            "empty": np.zeros((0, 4), np.float32),
        }
    rng = np.random.default_rng(version)

    def changed(x: np.ndarray) -> np.ndarray:
        if x.ndim == 0:
            return np.int32(version)
        new = x.copy()
        bits = new.reshape(-1).view(np.uint16 if x.itemsize == 2 else np.uint32)
        chosen = rng.random(bits.size) < 0.01
        bits[chosen] += 1
        return new

    return jax.tree.map(changed, weights(version - 1))


def abstract_on(numbers: tuple[int, ...] = (0,), spec: tuple[str | None, ...] = ()) -> dict:
    """Makes abstract params; matrices are sharded by a spec over the axis `x` of the devices."""
    mesh = jax.make_mesh(
        (len(numbers),), ("x",), devices=[jax.devices()[number] for number in numbers]
    )

    def abstract(x: np.ndarray) -> jax.ShapeDtypeStruct:
        cuts = PartitionSpec(*spec) if np.ndim(x) == 2 and np.size(x) else PartitionSpec()
        sharding = NamedSharding(mesh, cuts)
        return jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype, sharding=sharding)

    return jax.tree.map(abstract, weights(0))


def placed(version: int, abstract: dict) -> dict:
    """Places a version on devices."""
    return jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), weights(version), abstract)


def assert_same_bits(params: dict, version: int) -> None:
    """Fails unless these are the bits of a version."""
    expected = weights(version)
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
