"""Digest of parameters: equal for equal bits, and cheap enough to check after every transfer.

Each element's bits are mixed with the element's row-major index, and the mixed words are added up
modulo 2^32. Integer addition is associative, so the result depends neither on the sharding nor on
the order of a reduction. Through the index it reveals swapped, shifted and missing elements. Each
leaf's sums are mixed with its path, shape and dtype before the leaves are added up in the same way.

Each device adds up its own shards, in groups of a few equal shapes. One program for all shards
would take long to compile if there are many leaves. One program for each shard would block the
caller, since XLA allows only 32 in flight on a CPU. The groups are planned once for parameters of
one structure. Leaves that arrive one after the other are added up as they arrive.

It guards against mistakes and broken hardware, not against an adversary.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, Shaped, UInt32

from rl_sync.types import Params
from rl_sync.weights.digest_plan import plan_digest

_GOLDEN = 0x9E3779B1  # odd, so that multiplying by it loses nothing
_SILVER = 0x85EBCA77
UNSIGNED: dict[int, Any] = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
"""The dtype for reading an element's bits, by its number of bytes; 8-byte elements are two
words.
"""


def digest(params: Params) -> str:
    """Returns the digest of a pytree of arrays as 16 hexadecimal digits; waits for the arrays.

    Raises:
      TypeError: a leaf's dtype has no plain bits (complex numbers, PRNG keys).
    """
    return to_text(digest_words(params))


def to_text(words: UInt32[Array, " 2"]) -> str:
    """Fetches the words of a digest and writes them as 16 hexadecimal digits."""
    first, second = np.asarray(words).tolist()
    return f"{first:08x}{second:08x}"


def digest_words(params: Params) -> UInt32[Array, " 2"]:
    """Computes the digest as two words on the devices, so that the caller need not wait for it.

    Every process that holds a part of the parameters calls it.

    Raises:
      TypeError: as in `digest`.
    """
    arrays = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.asarray(x), params)
    leaves = jax.tree.leaves(arrays)
    if not leaves:
        return jnp.zeros((2,), jnp.uint32)
    arriving = ArrivingDigest(arrays)
    for number, leaf in enumerate(leaves):
        arriving.add(number, leaf)
    return arriving.words()


class ArrivingDigest:
    """Digest of parameters whose leaves arrive one after the other.

    Args:
      like: the parameters, as `plan_digest` takes them; at least one leaf.

    Raises:
      TypeError: as in `digest`.
    """

    def __init__(self, like: Params) -> None:
        self._plan = plan_digest(like)
        self._leaves: dict[int, Array] = {}
        self._missing = [len(group.leaves) for group in self._plan.groups]
        self._sums: dict[int, UInt32[Array, "group 2"]] = {}

    def add(self, number: int, leaf: Array) -> None:
        """Adds a leaf by its number in flattening order; it may still be in computation."""
        self._leaves[number] = leaf
        for index in self._plan.groups_of[number]:
            self._missing[index] -= 1
            if not self._missing[index]:
                group = self._plan.groups[index]
                shards = [
                    self._leaves[of].addressable_data(nth)
                    for of, nth in zip(group.leaves, group.nth, strict=True)
                ]
                self._sums[index] = _group_sums(shards, group.places)

    def words(self) -> UInt32[Array, " 2"]:
        """Returns the digest after all leaves; every process that holds a part calls it."""
        leaves = len(self._plan.salts)
        assert len(self._leaves) == leaves, "words() before all leaves were added"
        columns = [
            _column([self._sums[index] for index in column.groups], column.order)
            if column.groups
            else jnp.zeros((1, leaves, 2), jnp.uint32, device=column.device)
            for column in self._plan.columns
        ]
        spread = self._plan.everywhere
        shape = (spread.mesh.size, leaves, 2)
        everything = jax.make_array_from_single_device_arrays(shape, spread, columns)
        return _total(everything, self._plan.salts)


def _element_words(x: Shaped[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Reads an array's bits as words, one an element (two, in a last axis, for 8-byte dtypes)."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    return lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)


@jax.jit
def _group_sums(
    shards: list[Shaped[Array, "*shape"]], places: UInt32[Array, "group 1+axes"]
) -> UInt32[Array, "group 2"]:
    return jnp.stack([_shard_sums(*pair) for pair in zip(shards, places, strict=True)])


@jax.jit
def _column(
    sums: list[UInt32[Array, "group 2"]], order: Int[Array, " leaves"]
) -> UInt32[Array, "1 leaves 2"]:
    return jnp.concatenate([*sums, jnp.zeros((1, 2), jnp.uint32)])[order][None]


def _shard_sums(x: Shaped[Array, "*shape"], place: UInt32[Array, " 1+axes"]) -> UInt32[Array, " 2"]:
    words = _element_words(x)
    index = jnp.full(words.shape, place[0])
    for axis in range(words.ndim):
        index = index + lax.broadcasted_iota(jnp.uint32, words.shape, axis) * place[1 + axis]
    once = _mix(words + index * jnp.uint32(_GOLDEN))
    twice = once ^ (words * jnp.uint32(_SILVER) + jnp.uint32(_GOLDEN))
    # Both sums at once: XLA computes them at memory speed on a CPU, while each alone takes ten
    # times as long.
    zero = jnp.uint32(0)
    # Row by row, so that XLA uses all cores.
    axes = tuple(range(1 if x.ndim > 1 else 0, words.ndim))
    rows = lax.reduce((once, twice), (zero, zero), _add, axes)
    return jnp.stack([jnp.sum(row, dtype=jnp.uint32) for row in rows])


@jax.jit
def _total(
    sums: UInt32[Array, "devices leaves 2"], salts: UInt32[Array, "leaves 2"]
) -> UInt32[Array, " 2"]:
    return jnp.sum(_mix(jnp.sum(sums, 0, jnp.uint32) ^ salts), 0, jnp.uint32)


def _add(
    sums: tuple[UInt32[Array, ""], UInt32[Array, ""]],
    more: tuple[UInt32[Array, ""], UInt32[Array, ""]],
) -> tuple[UInt32[Array, ""], UInt32[Array, ""]]:
    return sums[0] + more[0], sums[1] + more[1]


def _mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Permutes words so that every bit affects every other (MurmurHash3's finalizer)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
