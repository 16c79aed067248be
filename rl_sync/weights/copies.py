"""Copies on the devices that are only dispatched: the caller continues while they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_OPERATIONS = 2000


def dispatching(move: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compiles a function that only moves data, so that calls return before data are moved.

    On a CPU, XLA runs a program of less than 1000 arithmetic operations in the calling thread,
    however many bytes it copies. So this adds some operations.

    Args:
      move: a function from a pytree of arrays to another.
    """

    @jax.jit
    def program(one: Float[Array, ""], tree: Any) -> tuple[Any, Float[Array, ""]]:
        return move(tree), jnp.sum(one * jnp.arange(_OPERATIONS, dtype=jnp.float32))

    return lambda tree: program(np.float32(1), tree)[0]


def copier() -> Callable[[Any], Any]:
    """Makes a function that copies a pytree; donating the originals does not affect the copies."""
    return dispatching(lambda tree: jax.tree.map(jnp.copy, tree))
