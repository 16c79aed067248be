"""Versions of small weights, for tests of checkpoint transfer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.transfers.checkpoint import CheckpointPublisher, CheckpointPuller


def make_params(version: int, size: int = 40) -> dict:
    key = jax.random.key(version)
    return {
        "layers": [
            {"w.in": jax.random.normal(key, (size, 5))},
            {"w": jnp.ones((3,), jnp.bfloat16)},
        ],
        "count": jnp.int32(version),
        "mask": jnp.array([True, False]),
        "empty": jnp.zeros((0, 2)),
    }


SLOW = np.full((1000, 1000), 1e-3, np.float32)


@jax.jit
def slow_step(params: dict, x: np.ndarray) -> dict:
    """Counts up by one, slowly: it takes some seconds."""
    x = jax.lax.fori_loop(0, 60, lambda _, x: jnp.tanh(x @ x), x)
    return {**params, "count": params["count"] + (x[0, 0] < 2).astype(jnp.int32)}


def puller_of(directory, params=None, **arguments) -> CheckpointPuller:
    """Makes a puller of whole versions."""
    arguments = {"run": "ours", "reader": "e1", "deltas": False, **arguments}
    return CheckpointPuller(directory, params or make_params(0), **arguments)


def publish_range(publisher: CheckpointPublisher, *versions: int) -> None:
    for version in range(*versions):
        publisher.publish(version, make_params(version))
