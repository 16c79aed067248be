"""Loads: buckets as arrays, which devices send and receive at a turn of a collective transfer."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from rl_sync.weights.assembly import Assembly, groups
from rl_sync.weights.digest import UNSIGNED
from rl_sync.weights.packing import pack, program_of, take
from rl_sync.weights.pieces import WORD_BYTES
from rl_sync.weights.regions import Region
from rl_sync.weights.routes import Bucket

Load = list[Shaped[Array, "*shape"]]
"""A bucket on a device: an array for each slot of the format, and then, if there are any, words."""


def load(
    bucket: Bucket,
    arrays: Mapping[int, Shaped[Array, "*shard"]],
    held: Mapping[int, Region],
    words: int,
    *,
    copy: bool,
) -> dict[int, Shaped[Array, "*shape"]]:
    """Builds the arrays that a device sends, by their places in its load.

    Args:
      arrays: the device's part of each leaf, by the leaf's number.
      held: the regions of these parts.
      words: the number of words of each load.
      copy: whether a piece that is the device's whole part of a leaf is copied, so that it may be
        donated, or sent as it is. Others are cut out.
    """
    sent: dict[int, Shaped[Array, "*shape"]] = {}
    for places in _cut(bucket, held, copy):
        pieces = [piece for place in places if (piece := bucket.single[place])]
        sent |= zip(places, take(pieces, arrays, held), strict=True)
    for place, piece in enumerate(bucket.single):
        if piece is not None and place not in sent:
            sent[place] = arrays[piece.leaf]
    if bucket.packed:
        sent[len(bucket.single)] = pack(bucket.packed, arrays, held, words)
    return sent


def unload(bucket: Bucket, load: Load, assembly: Assembly, *, words: bool = True) -> None:
    """Adds the load of a bucket to a device's assembly.

    Args:
      words: whether to add the words too.
    """
    singles = load[: len(bucket.single)]  # Words may follow them.
    pairs = [(piece, x) for piece, x in zip(bucket.single, singles, strict=True) if piece]
    assembly.add([piece for piece, _ in pairs], [x for _, x in pairs])
    if words and bucket.packed:
        assembly.add_packed(bucket.packed, load[-1])


def load_programs(
    bucket: Bucket, held: Mapping[int, Region], dtypes: Mapping[int, np.dtype], *, copy: bool
) -> Iterator[Hashable]:
    """Yields what distinguishes the programs that `load` runs."""
    for places in _cut(bucket, held, copy):
        pieces = [piece for place in places if (piece := bucket.single[place])]
        yield "take", program_of(pieces, held, dtypes)
    if bucket.packed:
        yield "pack", program_of(bucket.packed, held, dtypes)


def unload_programs(
    bucket: Bucket, held: Mapping[int, Region], dtypes: Mapping[int, np.dtype]
) -> Iterator[Hashable]:
    """Yields what distinguishes the programs that `unload` runs for a device that holds all."""
    parts = [piece for piece in bucket.single if piece and piece.region != held[piece.leaf]]
    for group in groups(parts):
        yield "put", program_of(group, held, dtypes)
    if bucket.packed:
        yield "unpack", program_of(bucket.packed, held, dtypes)


def _cut(bucket: Bucket, held: Mapping[int, Region], copy: bool) -> list[Sequence[int]]:
    """Returns the places of the pieces that are cut out, in groups."""
    return groups(
        [
            place
            for place, piece in enumerate(bucket.single)
            if piece and (copy or piece.region != held[piece.leaf])
        ]
    )


def wire_dtype(dtype: np.dtype, platform: str) -> np.dtype:
    """Returns the dtype as which a leaf is cut, sent and put together.

    On CPUs XLA widens floats of less than 32 bits to float32 for a transfer, which doubles their
    bytes and changes NaNs, as it also does where it puts them into arrays. It leaves integers as
    they are.
    """
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < WORD_BYTES
    return np.dtype(UNSIGNED[dtype.itemsize]) if narrow and platform == "cpu" else dtype


def viewed(x: Shaped[Array, "*shape"], dtype: np.dtype) -> Shaped[Array, "*shape"]:
    """Views an array as another dtype; if it is another, the array's memory is the host's."""
    return x if x.dtype == dtype else jax.device_put(np.asarray(x).view(dtype), x.sharding)
