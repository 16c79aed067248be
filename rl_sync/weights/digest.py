"""A digest of parameters: equal for equal bits, and cheap enough to check after every transfer.

Each element's bits are mixed with the element's row-major index, and the mixed words are added up
modulo 2^32. Integer addition is associative, so neither the sharding nor the order of a reduction
shows in the result; the index makes swapped, shifted and missing elements show. Each leaf's sums
are mixed with its path, shape and dtype before the leaves are added up in the same way.

It guards against mistakes and broken hardware, not against an adversary.
"""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped, UInt32

from rl_sync.types import Params

_GOLDEN = 0x9E3779B1  # odd, so that multiplying by it loses nothing
_SILVER = 0x85EBCA77
UNSIGNED: dict[int, Any] = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
"""From bytes an element to the dtype that its bits are read as; 8-byte elements are two words."""


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


@jax.jit
def digest_words(params: Params) -> UInt32[Array, " 2"]:
    """The digest as two words on the device, so that it can be computed without waiting for it.

    Raises:
      TypeError: as in `digest`.
    """
    total = jnp.zeros((2,), jnp.uint32)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        leaf, name = jnp.asarray(leaf), jax.tree_util.keystr(path)
        check_dtype(name, leaf.dtype)
        salts = _leaf_salts(name, leaf.shape, leaf.dtype.name)
        total = total + _mix(_leaf_sums(leaf) ^ salts)
    return total


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


def _leaf_sums(x: Shaped[Array, "*shape"]) -> UInt32[Array, " 2"]:
    words = _element_words(x)
    place = _mix(_row_major_index(words.shape) * jnp.uint32(_GOLDEN))
    once = _mix(words + place)
    twice = _mix(once ^ (words * jnp.uint32(_SILVER)) ^ place)
    # Both at once, which XLA computes at the speed of memory on a CPU; each alone takes ten times
    # as long.
    zero = jnp.uint32(0)
    sums = lax.reduce((once, twice), (zero, zero), _add, tuple(range(words.ndim)))
    return jnp.stack(sums)


def _add(
    sums: tuple[UInt32[Array, ""], UInt32[Array, ""]],
    more: tuple[UInt32[Array, ""], UInt32[Array, ""]],
) -> tuple[UInt32[Array, ""], UInt32[Array, ""]]:
    return sums[0] + more[0], sums[1] + more[1]


def _row_major_index(shape: tuple[int, ...]) -> UInt32[Array, "*shape"]:
    """Each element's index modulo 2^32: one iota an axis, so that it shards like the leaf."""
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        steps = lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index + steps * jnp.uint32(stride & 0xFFFFFFFF)
        stride *= shape[axis]
    return index


def _mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A bijection of words in which every bit moves every other (MurmurHash3's finalizer)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _leaf_salts(path: str, shape: tuple[int, ...], dtype: str) -> UInt32[np.ndarray, " 2"]:
    content = repr((path, shape, dtype)).encode()
    return np.frombuffer(hashlib.sha256(content).digest()[:8], dtype="<u4").astype(np.uint32)
