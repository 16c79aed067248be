"""Digest of parameters: equal for equal bits, and cheap enough to check after every transfer.

Each element's bits are mixed with the element's row-major index, and the mixed words are summed
modulo 2^32. Integer addition is associative, so the result depends neither on the sharding nor on
the order of a reduction. The index reveals swapped, shifted and missing elements. Each leaf's sums
are mixed with its path, shape and dtype before the leaves are summed in the same way. Each device
sums its own shards, with one program for each shard. The devices communicate once, at the end.

The digest guards against mistakes and broken hardware, not against an adversary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Shaped, UInt32

from rl_sync.types import Params

_GOLDEN = 0x9E3779B1  # Odd, so that multiplying by it loses no information.
_SILVER = 0x85EBCA77
_WORD = 0xFFFFFFFF
UNSIGNED: dict[int, DTypeLike] = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
"""Dtype for reading an element's bits, by its number of bytes; 8-byte elements are two words."""

LeafSums = Mapping[jax.Device, UInt32[Array, " 2"]]
"""Sums of a leaf's shards, by the device of this process that sums the shard."""


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

    Every process that holds a part of the parameters must call it.

    Raises:
      TypeError: as in `digest`.
    """
    arrays = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.asarray(x), params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        check_dtype(jax.tree_util.keystr(path), leaf.dtype)
    return combine(arrays, [leaf_sums(leaf) for leaf in jax.tree.leaves(arrays)])


def leaf_sums(leaf: Array) -> LeafSums:
    """Sums the shards of a leaf that this process holds; only the first of several replicas."""
    shape = (*leaf.shape, 2) if leaf.dtype.itemsize > 4 else leaf.shape
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    sums = {}
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            starts = [cut.start or 0 for cut in shard.index]
            first = sum(start * stride for start, stride in zip(starts, strides, strict=False))
            place = np.array([number & _WORD for number in (first, *strides)], np.uint32)
            sums[shard.device] = _shard_sums(shard.data, place)
    return sums


def combine(params: Params, sums: Sequence[LeafSums]) -> UInt32[Array, " 2"]:
    """Computes the digest of parameters from the sums of their leaves.

    Every process that holds a part of the parameters must call it.

    Args:
      params: the arrays.
      sums: result of `leaf_sums` for each leaf, in flattening order.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        return jnp.zeros((2,), jnp.uint32)
    salts = np.array([_salt(jax.tree_util.keystr(path), leaf) for path, leaf in leaves], np.uint32)
    devices = set().union(*(leaf.sharding.device_set for _, leaf in leaves))
    ordered = sorted(devices, key=lambda device: device.id)
    columns = [
        _column([of.get(device) for of in sums], np.zeros(2, np.uint32))
        if any(device in of for of in sums)
        else jnp.zeros((1, len(leaves), 2), jnp.uint32, device=device)
        for device in ordered
        if device.process_index == jax.process_index()
    ]
    sharding = NamedSharding(Mesh(np.array(ordered), ("device",)), PartitionSpec("device"))
    shape = (len(ordered), len(leaves), 2)
    everything = jax.make_array_from_single_device_arrays(shape, sharding, columns)
    return _total(everything, salts)


def check_dtype(name: str, dtype: np.dtype) -> None:
    """Raises a TypeError unless the dtype's elements are whole bytes of plain bits."""
    if dtype == jnp.bool_:
        return
    if jnp.issubdtype(dtype, jnp.integer):
        bits = jnp.iinfo(dtype).bits
    elif jnp.issubdtype(dtype, jnp.floating):
        bits = jnp.finfo(dtype).bits
    else:
        bits = 0
    if bits < 8:
        raise TypeError(
            f"Parameter {name} has dtype {dtype}, which cannot be transferred: use boolean, integer"
            " or floating leaves of at least one byte (for PRNG keys, jax.random.key_data)."
        )


def _salt(path: str, leaf: Array) -> list[int]:
    """Hashes a leaf's path, shape and dtype."""
    content = repr((path, tuple(leaf.shape), leaf.dtype.name)).encode()
    return np.frombuffer(hashlib.sha256(content).digest()[:8], dtype="<u4").tolist()


@jax.jit
def _shard_sums(x: Shaped[Array, "*shape"], place: UInt32[Array, " 1+axes"]) -> UInt32[Array, " 2"]:
    """Sums a shard's mixed words.

    Args:
      x: the shard.
      place: row-major index in the leaf of the shard's first word, and the stride of words along
        each axis.
    """
    words = _element_words(x)
    index = jnp.full(words.shape, place[0])
    for axis in range(words.ndim):
        index = index + lax.broadcasted_iota(jnp.uint32, words.shape, axis) * place[1 + axis]
    once = _mix(words + index * jnp.uint32(_GOLDEN))
    twice = once ^ (words * jnp.uint32(_SILVER) + jnp.uint32(_GOLDEN))
    # Both sums in one expression: XLA then computes them at memory speed on a CPU, while separate
    # sums take ten times as long.
    zero = jnp.uint32(0)
    # Row by row, so that XLA uses all cores.
    axes = tuple(range(1 if x.ndim > 1 else 0, words.ndim))
    rows = lax.reduce((once, twice), (zero, zero), _add, axes)
    return jnp.stack([jnp.sum(row, dtype=jnp.uint32) for row in rows])


def _element_words(x: Shaped[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Reads an array's bits as words, one per element (two, in a last axis, for 8-byte dtypes)."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    return lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)


@jax.jit
def _column(
    sums: list[UInt32[Array, " 2"] | None], zero: UInt32[Array, " 2"]
) -> UInt32[Array, "1 leaves 2"]:
    """Stacks a device's sums; a leaf without shards on this device counts as zero."""
    return jnp.stack([zero if of is None else of for of in sums])[None]


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
