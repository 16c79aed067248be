"""A digest of parameters: equal for equal bits, and cheap enough to check after every transfer.

Each element's bits are mixed with the element's row-major index, and the mixed words are added up
modulo 2^32. Integer addition is associative, so neither the sharding nor the order of a reduction
shows in the result; the index makes swapped, shifted and missing elements show. Each leaf's sums
are mixed with its path, shape and dtype before the leaves are added up in the same way.

Each device adds up its own shards, a few alike at a time: one program for all would take long to
compile where there are many leaves, and a program for each would keep the caller waiting, since
XLA lets only 32 be under way on a CPU.

It guards against mistakes and broken hardware, not against an adversary.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Shaped, UInt32

from rl_sync.types import Params

_GOLDEN = 0x9E3779B1  # odd, so that multiplying by it loses nothing
_SILVER = 0x85EBCA77
_WORD = 0xFFFFFFFF
_GROUP = 8
UNSIGNED: dict[int, Any] = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
"""From bytes an element to the dtype that its bits are read as; 8-byte elements are two words."""


class _Shard(NamedTuple):
    """What a device has of a leaf, and where in the leaf that is; see `_place`."""

    leaf: int
    data: Shaped[Array, "*shape"]
    place: UInt32[np.ndarray, " 1+axes"]


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
    """The digest as two words on the devices, so that it can be computed without waiting for it.

    Every process that holds a part of the parameters calls it.

    Raises:
      TypeError: as in `digest`.
    """
    leaves, salts = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
        name = jax.tree_util.keystr(path)
        check_dtype(name, array.dtype)
        leaves.append(array)
        salts.append(_leaf_salts(name, array.shape, array.dtype.name))
    if not leaves:
        return jnp.zeros((2,), jnp.uint32)
    everywhere: set[Any] = {device for leaf in leaves for device in leaf.sharding.device_set}
    devices = sorted(everywhere, key=lambda device: device.id)
    here = jax.process_index()
    shards: dict[jax.Device, list[_Shard]] = {d: [] for d in devices if d.process_index == here}
    for number, leaf in enumerate(leaves):
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                shards[shard.device].append(_Shard(number, shard.data, _place(leaf, shard.index)))
    columns = [
        _device_sums(mine, len(leaves))
        if mine
        else jnp.zeros((1, len(leaves), 2), jnp.uint32, device=device)
        for device, mine in shards.items()
    ]
    spread = NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec("device"))
    shape = (len(devices), len(leaves), 2)
    everything = jax.make_array_from_single_device_arrays(shape, spread, columns)
    return _total(everything, np.stack(salts))


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


def _element_words(x: Shaped[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """An array's bits as words, one an element (two, in a last axis, of 8-byte dtypes)."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    return lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)


def _place(leaf: Array, index: tuple[slice, ...]) -> UInt32[np.ndarray, " 1+axes"]:
    """The row-major index of a shard's first word, and how far apart words are along each axis."""
    shape = (*leaf.shape, 2) if leaf.dtype.itemsize > 4 else leaf.shape
    starts = [part.indices(size)[0] for part, size in zip(index, leaf.shape, strict=True)]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(start * stride for start, stride in zip(starts, strides, strict=False))
    return np.array([number & _WORD for number in (first, *strides)], np.uint32)


def _device_sums(shards: Sequence[_Shard], leaves: int) -> UInt32[Array, "1 leaves 2"]:
    """The sums of each leaf's shard on a device; 0 of leaves that have none there."""
    alike: dict[Any, list[_Shard]] = {}
    for shard in shards:
        alike.setdefault((shard.data.shape, shard.data.dtype), []).append(shard)
    groups = [each[i : i + _GROUP] for each in alike.values() for i in range(0, len(each), _GROUP)]
    order = np.full((leaves,), len(shards))
    order[[shard.leaf for group in groups for shard in group]] = np.arange(len(shards))
    sums = [_group_sums([s.data for s in group], [s.place for s in group]) for group in groups]
    return _column(sums, order)


@jax.jit
def _group_sums(
    shards: list[Shaped[Array, "*shape"]], places: list[UInt32[Array, " 1+axes"]]
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
    # Both at once, which XLA computes at the speed of memory on a CPU; each alone takes ten times
    # as long.
    zero = jnp.uint32(0)
    # Row by row, which XLA spreads over the cores.
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
    """A bijection of words in which every bit moves every other (MurmurHash3's finalizer)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@functools.cache
def _leaf_salts(path: str, shape: tuple[int, ...], dtype: str) -> UInt32[np.ndarray, " 2"]:
    content = repr((path, shape, dtype)).encode()
    return np.frombuffer(hashlib.sha256(content).digest()[:8], dtype="<u4").astype(np.uint32)
