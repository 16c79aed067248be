"""Loads: buckets as arrays, which devices send and receive at a turn of a collective transfer."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from rl_sync.weights.assembly import Assembly, groups
from rl_sync.weights.digest import UNSIGNED
from rl_sync.weights.packing import pack, take
from rl_sync.weights.pieces import WORD_BYTES, Piece
from rl_sync.weights.regions import Region
from rl_sync.weights.routes import Bucket

Load = list[Shaped[Array, "*shape"]]
"""A bucket on a device: its single pieces, and then, if there are any, the words."""


def load(
    bucket: Bucket,
    arrays: Mapping[int, Shaped[Array, "*shard"]],
    held: Mapping[int, Region],
    words: int,
) -> Load:
    """Builds the load that a device sends.

    A single piece that is the device's whole part of a leaf is sent as it is; others are cut out.

    Args:
      arrays: the device's part of each leaf, by the leaf's number.
      held: the regions of these parts.
      words: the number of words to send besides the single pieces.
    """
    pieces: dict[Piece, Shaped[Array, "*piece"]] = {}
    for group in groups([p for p in bucket.single if p.region != held[p.leaf]]):
        pieces |= zip(group, take(group, arrays, held), strict=True)
    single = [_sent(pieces.get(piece, arrays[piece.leaf])) for piece in bucket.single]
    if not words:
        return single
    if not bucket.packed:  # Other devices send words at this turn.
        (device,) = arrays[0].devices()
        return [*single, jnp.zeros((words,), jnp.uint32, device=device)]
    return [*single, pack(bucket.packed, arrays, held, words)]


def unload(bucket: Bucket, load: Load, dtypes: Mapping[int, np.dtype], assembly: Assembly) -> None:
    """Adds the load of a bucket to a device's assembly; the leaves have these dtypes."""
    singles = load[: len(bucket.single)]  # Words may follow them.
    pairs = zip(bucket.single, singles, strict=True)
    assembly.add(bucket.single, [_with_dtype(x, dtypes[piece.leaf]) for piece, x in pairs])
    if bucket.packed:
        assembly.add_packed(bucket.packed, load[-1])


def _sent(piece: Shaped[Array, "*piece"]) -> Shaped[Array, "*piece"]:
    (device,) = piece.devices()
    return _with_dtype(piece, wire_dtype(piece.dtype, device.platform))


def wire_dtype(dtype: np.dtype, platform: str) -> np.dtype:
    """Returns the dtype in which a single piece is sent.

    On CPUs XLA widens floats of less than 32 bits to float32 for a transfer, which doubles their
    bytes and changes NaNs. It leaves integers as they are.
    """
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < WORD_BYTES
    return np.dtype(UNSIGNED[dtype.itemsize]) if narrow and platform == "cpu" else dtype


def _with_dtype(x: Shaped[Array, "*shape"], dtype: np.dtype) -> Shaped[Array, "*shape"]:
    """Views an array, whose memory is the host's, as another dtype."""
    return x if x.dtype == dtype else jax.device_put(np.asarray(x).view(dtype), x.sharding)
