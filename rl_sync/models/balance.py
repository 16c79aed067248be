"""Orders the positions of rows so that devices that share rows have equal work in causal attention.

Of a row that is cut over c devices, the last part attends to c times as many positions as the
first. So rows are cut into 2c chunks, and device i has chunks i and 2c − 1 − i (Llama 3,
arXiv:2407.21783, section 3.3.2).

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rl_sync.models.sharding import in_use
from rl_sync.models.shards import on_shards

_OF_TOKENS = ("batch", "length")


def cut_of(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the mesh axes that cut the positions of tokens [B, T, …] of this shape."""
    return in_use().cuts(_OF_TOKENS, shape)[1]


def shards_of(cut: tuple[str, ...]) -> int:
    """Returns the number of devices along mesh axes."""
    return math.prod(in_use().mesh.shape[axis] for axis in cut)


def can_balance(shape: tuple[int, ...]) -> bool:
    """True if devices share rows of tokens [B, T, …], whose chunks have equal lengths."""
    shards = shards_of(cut_of(shape))
    return shards > 1 and shape[1] % (2 * shards) == 0


def balanced_order(row_tokens: int, shards: int) -> np.ndarray:
    """Returns the index in its row of each token of a balanced row."""
    chunks = np.arange(row_tokens).reshape(2 * shards, -1)
    return np.stack([chunks[:shards], chunks[: shards - 1 : -1]], axis=1).reshape(-1)


def balance(x: Array) -> Array:
    """Sends chunks of positions of x, [B, T, …], to the devices that have them in balanced rows."""
    return on_shards(functools.partial(_exchange, cut_of(x.shape)), _OF_TOKENS)(x)


def put_in_order(x: Array, *axes: str) -> Array:
    """Sends chunks of values of balanced rows, [B, T, …], back, so that rows are in order again.

    Args:
      axes: logical names of the axes after T.
    """
    return on_shards(functools.partial(_exchange_back, cut_of(x.shape)), (*_OF_TOKENS, *axes))(x)


def ordered(x: Array, shards: int) -> Array:
    """Puts balanced rows, which each device has whole, in order again."""
    chunks = x.reshape(x.shape[0], shards, 2, -1, *x.shape[2:])
    return jnp.concatenate([chunks[:, :, 0], chunks[:, ::-1, 1]], axis=1).reshape(x.shape)


# Each device holds an even and an odd chunk, so two permutations suffice.


def _exchange(cut: tuple[str, ...], x: Array) -> Array:
    even, odd = (
        jax.lax.ppermute(part, cut, _routes(shards_of(cut), parity))
        for parity, part in enumerate(jnp.split(x, 2, axis=1))
    )
    swaps = jax.lax.axis_index(cut) % 2 == 1
    first, second = jnp.where(swaps, odd, even), jnp.where(swaps, even, odd)
    return jnp.concatenate([first, second], axis=1)


def _exchange_back(cut: tuple[str, ...], x: Array) -> Array:
    first, second = jnp.split(x, 2, axis=1)
    swaps = jax.lax.axis_index(cut) % 2 == 1
    parts = jnp.where(swaps, second, first), jnp.where(swaps, first, second)
    return jnp.concatenate(
        [
            jax.lax.ppermute(
                part, cut, [(there, here) for here, there in _routes(shards_of(cut), parity)]
            )
            for parity, part in enumerate(parts)
        ],
        axis=1,
    )


def _routes(shards: int, parity: int) -> list[tuple[int, int]]:
    """Returns pairs of devices: the one that has an even or odd chunk of an ordered row, and the
    one that has it in balanced rows.
    """
    chunks = range(parity, 2 * shards, 2)
    return [(chunk // 2, min(chunk, 2 * shards - 1 - chunk)) for chunk in chunks]
