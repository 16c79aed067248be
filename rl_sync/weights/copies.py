"""Device copies that are dispatched asynchronously: the caller continues meanwhile.

On a CPU, XLA runs a program of less than 1000 arithmetic operations in the calling thread, however
many bytes it copies. So these programs contain some extra operations.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from rl_sync.weights.cells import Region

_OPERATIONS = 2000

T = TypeVar("T")

Cut = tuple[int, Region]
"""Number of an array, and the region of it to copy."""


def copied(tree: T) -> T:
    """Copies a pytree of arrays; donating the originals does not affect the copies."""
    return _copied(tree, np.float32(1))[0]


def cut_out(
    arrays: Sequence[Shaped[Array, "*shard"]], cuts: tuple[Cut, ...]
) -> list[Shaped[Array, "*region"]]:
    """Copies regions of one device's arrays, in one program."""
    return _cut_out(list(arrays), np.float32(1), cuts=cuts)[0]


@jax.jit
def _copied(tree: T, one: Float[Array, ""]) -> tuple[T, Float[Array, ""]]:
    return jax.tree.map(jnp.copy, tree), _busy(one)


@functools.partial(jax.jit, static_argnames="cuts")
def _cut_out(
    arrays: list[Shaped[Array, "*shard"]], one: Float[Array, ""], cuts: tuple[Cut, ...]
) -> tuple[list[Shaped[Array, "*region"]], Float[Array, ""]]:
    regions = [
        jnp.copy(arrays[number][tuple(slice(*interval) for interval in region)])
        for number, region in cuts
    ]
    return regions, _busy(one)


def _busy(one: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.sum(one * jnp.arange(_OPERATIONS, dtype=jnp.float32))
