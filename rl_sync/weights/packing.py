"""Packing: the leaves of a pytree as a few buckets of 32-bit words, and back, bit for bit.

Many small transfers are slow and so are 16-bit dtypes over some transports, so a transfer moves
words: the leaves, one after the other in flattening order, cut into buckets of one size.

Letters in shapes: W words of a bucket.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped, UInt32

from rl_sync.types import Params
from rl_sync.weights.digest import UNSIGNED, check_dtype

_WORD_BYTES = 4


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """Where each leaf stands in the stream of words. Made by `plan_packing`, and hashable.

    Attributes:
      treedef: the structure of the pytree.
      leaves: shape and dtype of each leaf, in flattening order.
      starts: each leaf's first word in the stream.
      total_words: the length of the stream, without the last bucket's padding.
      bucket_words: W, the length of every bucket.
      buckets: how many buckets there are; 0 of a pytree without elements.
    """

    treedef: jax.tree_util.PyTreeDef
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    starts: tuple[int, ...]
    total_words: int
    bucket_words: int
    buckets: int

    def pack(self, params: Params) -> tuple[UInt32[Array, " W"], ...]:
        """Returns the buckets: fresh arrays, which a donation of `params` does not touch.

        Raises:
          ValueError: `params` has another structure, shape or dtype than was planned.
        """
        self.check(params)
        streams = [_to_words(jnp.asarray(leaf)) for leaf in jax.tree.leaves(params)]
        return tuple(self._bucket(streams, b) for b in range(self.buckets))

    def unpack(self, buckets: tuple[UInt32[Array, " W"], ...]) -> Params:
        """Inverts `pack`."""
        leaves = []
        for leaf, start in zip(self.leaves, self.starts, strict=True):
            words = self._slice(buckets, start, start + word_count(leaf))
            leaves.append(_from_words(words, leaf))
        return jax.tree.unflatten(self.treedef, leaves)

    def check(self, params: Params) -> None:
        """Raises a ValueError that names the first leaf that is not as planned."""
        paths, treedef = jax.tree_util.tree_flatten_with_path(params)
        if treedef != self.treedef:
            raise ValueError(
                f"The parameters have the structure {treedef}, but the transfer was planned for"
                f" {self.treedef}: make the publisher and the puller from the same model."
            )
        for (path, leaf), planned in zip(paths, self.leaves, strict=True):
            if (leaf.shape, leaf.dtype) != (planned.shape, planned.dtype):
                raise ValueError(
                    f"Parameter {jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}, but"
                    f" the transfer was planned for {planned.dtype}{list(planned.shape)}: make the"
                    " publisher and the puller from the same model."
                )

    def _bucket(self, streams: list[UInt32[Array, "*shape"]], b: int) -> UInt32[Array, " W"]:
        low, high = b * self.bucket_words, (b + 1) * self.bucket_words
        parts = []
        for stream, start in zip(streams, self.starts, strict=True):
            first, last = max(low, start), min(high, start + stream.size)
            if first < last:
                parts.append(stream[first - start : last - start])
        padding = high - max(low, min(high, self.total_words))
        if padding:
            parts.append(jnp.zeros((padding,), jnp.uint32))
        return jnp.concatenate(parts)

    def _slice(
        self, buckets: tuple[UInt32[Array, " W"], ...], low: int, high: int
    ) -> UInt32[Array, "*shape"]:
        if low == high:
            return jnp.zeros((0,), jnp.uint32)
        size = self.bucket_words
        parts = [
            buckets[b][max(low - b * size, 0) : min(high - b * size, size)]
            for b in range(low // size, (high - 1) // size + 1)
        ]
        return jnp.concatenate(parts)


def plan_packing(like: Params, bucket_bytes: int) -> PackingPlan:
    """Plans how to pack a pytree.

    Args:
      like: arrays, or `jax.ShapeDtypeStruct`s, in the shapes that will be packed.
      bucket_bytes: the most that one bucket may hold; a larger leaf is cut.

    Raises:
      ValueError: the bucket does not hold even one word.
      TypeError: a leaf's dtype has no plain bits.
    """
    if bucket_bytes < _WORD_BYTES:
        raise ValueError(f"bucket_bytes={bucket_bytes} must be at least {_WORD_BYTES}.")
    paths, treedef = jax.tree_util.tree_flatten_with_path(like)
    leaves = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for _, leaf in paths)
    starts, total = [], 0
    for (path, _), leaf in zip(paths, leaves, strict=True):
        check_dtype(jax.tree_util.keystr(path), leaf.dtype)
        starts.append(total)
        total += word_count(leaf)
    most = bucket_bytes // _WORD_BYTES
    buckets = math.ceil(total / most)
    # Evenly filled buckets: every bucket has one size, and the last one needs little padding.
    words = math.ceil(total / buckets) if buckets else 0
    return PackingPlan(treedef, leaves, tuple(starts), total, words, buckets)


def word_count(leaf: jax.ShapeDtypeStruct) -> int:
    """How many words a leaf fills; its last word may be padded."""
    return math.ceil(math.prod(leaf.shape) * leaf.dtype.itemsize / _WORD_BYTES)


def _to_words(x: Shaped[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    flat = x.reshape(-1)
    if x.dtype == jnp.bool_:
        flat = flat.astype(jnp.uint8)
    units = lax.bitcast_convert_type(flat, UNSIGNED[flat.dtype.itemsize]).reshape(-1)
    per_word = _WORD_BYTES // units.dtype.itemsize
    if per_word == 1:
        return units
    units = jnp.pad(units, (0, -units.size % per_word))
    return lax.bitcast_convert_type(units.reshape(-1, per_word), jnp.uint32)


def _from_words(
    words: UInt32[Array, "*shape"], leaf: jax.ShapeDtypeStruct
) -> Shaped[Array, "*shape"]:
    size, itemsize = math.prod(leaf.shape), leaf.dtype.itemsize
    if itemsize > _WORD_BYTES:
        return lax.bitcast_convert_type(words.reshape(-1, 2), leaf.dtype).reshape(leaf.shape)
    unsigned = UNSIGNED[itemsize]
    units = lax.bitcast_convert_type(words, unsigned).reshape(-1)[:size]
    if leaf.dtype == jnp.bool_:
        return units.astype(jnp.bool_).reshape(leaf.shape)
    return lax.bitcast_convert_type(units, leaf.dtype).reshape(leaf.shape)
