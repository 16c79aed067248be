"""Small arrays that are alike, as one: to store an array takes time, however small it is.

Arrays of one shape and dtype are stacked, in flattening order, up to a size from which one more
array costs little. Shape and dtype alone decide which go together, so that trainer and explorers,
whose shardings differ, agree.
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
"""What a stack has at the most; larger arrays stay alone."""


class _Stack(NamedTuple):
    """Which leaves go together, and what their stack is called."""

    name: str
    leaves: tuple[str, ...]


class Stacks:
    """How the leaves of a pytree become fewer arrays, and come back.

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
        """What `stack` returns: for each name a shape, a dtype, and where it lies."""
        return {stack.name: self._stacked(stack) for stack in self._stacks}

    def stack(self, tree: Params) -> dict[str, Array]:
        """Copies the leaves into fresh arrays, without waiting for what computes them.

        Args:
          tree: of the structure, shapes and dtypes of `like`.
        """
        return self._join(flatten_named(tree))

    def unstack(self, stacked: dict[str, Array]) -> Any:
        """Inverts `stack`, each leaf in the sharding that it has in `like`.

        One stack after the other, so that no more than one is held twice.

        Args:
          stacked: is emptied.
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
    # Its number tells a stack from that of a model in which other leaves are between the two.
    number = zlib.crc32("\n".join(leaves).encode())
    return _Stack(f"{leaves[0]}+{len(leaves) - 1}.{number:08x}", leaves)


@functools.lru_cache(maxsize=256)
def _splitter(
    shardings: tuple[Sharding | None, ...],
) -> Callable[[Array], list[Array]]:
    """What takes a stack apart; compiled once for all that are alike."""
    return jax.jit(lambda stacked: list(stacked), out_shardings=list(shardings))
