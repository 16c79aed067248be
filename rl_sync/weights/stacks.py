"""Stacks: small arrays of the same shape and dtype are stored as one, as each array takes time.

Arrays of one shape and dtype are stacked in flattening order, up to a size at which another array
costs little. Only shape and dtype decide about stacks, so that trainer and explorers agree although
their shardings differ.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array

from rl_sync.types import Params
from rl_sync.weights.copies import dispatching
from rl_sync.weights.storage import flatten_named, placement, unflatten_named

STACK_BYTES = 32 << 20
"""The largest size of a stack; larger arrays stay alone."""


class _Stack(NamedTuple):
    """A stack's name, and its leaves."""

    name: str
    leaves: tuple[str, ...]


class Stacks:
    """Stacks the leaves of a pytree into fewer arrays, and inverts that.

    Args:
      like: the pytree, of arrays or `jax.ShapeDtypeStruct`s with their shardings.
    """

    def __init__(self, like: Any) -> None:
        self._tree = like = jax.tree.map(_described, like)
        self._leaves = flatten_named(like)
        self._stacks = _plan(self._leaves)
        self._join = dispatching(self._joined)

    @property
    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape, dtype and sharding, by name, of what `stack` returns."""
        return {stack.name: self._stacked(stack) for stack in self._stacks}

    def stack(self, tree: Params) -> dict[str, Array]:
        """Copies the leaves into new arrays, without waiting for their computation.

        Args:
          tree: a pytree with the structure, shapes and dtypes of `like`.
        """
        return self._join(flatten_named(tree))

    def unstack(self, stacked: dict[str, Array]) -> Any:
        """Inverts `stack`; each leaf gets its sharding in `like`.

        It takes one stack after the other, so that only one is in memory twice.

        Args:
          stacked: the stacks; the dict is emptied.
        """
        leaves: dict[str, Array] = {}
        for stack in self._stacks:
            array = stacked.pop(stack.name)
            if len(stack.leaves) > 1:
                shardings = tuple(self._leaves[name].sharding for name in stack.leaves)
                parts = jax.block_until_ready(_splitter(shardings)(array))
                leaves.update(zip(stack.leaves, parts, strict=True))
            else:
                leaves[stack.leaves[0]] = array
        return unflatten_named(self._tree, leaves)

    def _joined(self, leaves: Mapping[str, Array]) -> dict[str, Array]:
        joined = {}
        for stack in self._stacks:
            arrays = [leaves[name] for name in stack.leaves]
            array = jnp.stack(arrays) if len(arrays) > 1 else jnp.copy(arrays[0])
            sharding = self._stacked(stack).sharding
            if isinstance(sharding, NamedSharding):
                array = jax.lax.with_sharding_constraint(array, sharding)
            joined[stack.name] = array
        return joined

    def _stacked(self, stack: _Stack) -> jax.ShapeDtypeStruct:
        first = self._leaves[stack.leaves[0]]
        if len(stack.leaves) == 1:
            return first
        sharding = first.sharding
        if isinstance(sharding, NamedSharding):
            sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
        shape = (len(stack.leaves), *first.shape)
        return jax.ShapeDtypeStruct(shape, first.dtype, sharding=sharding)


def _described(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placement(leaf))


def _plan(leaves: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[_Stack, ...]:
    alike: dict[Any, list[str]] = {}
    for name, leaf in leaves.items():
        alike.setdefault((leaf.shape, leaf.dtype), []).append(name)
    stacks = []
    for (shape, dtype), names in alike.items():
        nbytes = math.prod(shape) * dtype.itemsize
        most = max(1, STACK_BYTES // max(nbytes, 1))
        stacks += [_named(tuple(names[i : i + most])) for i in range(0, len(names), most)]
    return tuple(stacks)


def _named(leaves: tuple[str, ...]) -> _Stack:
    if len(leaves) == 1:
        return _Stack(leaves[0], leaves)
    # The number distinguishes the stack from one of another model, with other leaves in between.
    number = zlib.crc32("\n".join(leaves).encode())
    return _Stack(f"{leaves[0]}+{len(leaves) - 1}.{number:08x}", leaves)


@functools.lru_cache(maxsize=256)
def _splitter(
    shardings: tuple[Sharding | None, ...],
) -> Callable[[Array], list[Array]]:
    """Makes the function that takes a stack apart; compiled once for stacks of the same kind."""
    return jax.jit(lambda stacked: list(stacked), out_shardings=list(shardings))
