"""Packing: cuts pieces out of arrays and puts them into others, bit for bit.

Many small transfers are slow. So small pieces are sent as one array of words. The start of a piece
in its array is an argument, so that pieces of one size compile once.

Letters in shapes: W words of a bucket.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, Shaped, UInt32

from rl_sync.weights.digest import UNSIGNED
from rl_sync.weights.pieces import WORD_BYTES, Piece
from rl_sync.weights.regions import Region, moved, shape_of

Kind = tuple[tuple[int, ...], np.dtype]
"""A shape and a dtype."""

Kinds = tuple[Kind, ...]

_Sizes = tuple[tuple[int, tuple[int, ...]], ...]


class _Cuts(NamedTuple):
    """Positions of pieces in the arrays of one device.

    Attributes:
      leaves: the leaves that they are pieces of, each once.
      sizes: for each piece the index of its leaf in `leaves`, and its shape.
      starts: the first index of each piece along each axis, one piece after the other.
    """

    leaves: tuple[int, ...]
    sizes: _Sizes
    starts: Int[np.ndarray, " axes"]


def take(
    pieces: Sequence[Piece],
    arrays: Mapping[int, Shaped[Array, "*shard"]],
    held: Mapping[int, Region],
) -> list[Shaped[Array, "*piece"]]:
    """Cuts pieces out of the arrays of a device; they have memory of their own.

    Args:
      arrays: the device's part of each leaf, by the leaf's number.
      held: the regions of these parts.
    """
    cuts = _cuts(pieces, held)
    return _take([arrays[leaf] for leaf in cuts.leaves], cuts.starts, sizes=cuts.sizes)


def put(
    pieces: Sequence[Piece],
    values: Sequence[Shaped[Array, "*piece"]],
    arrays: Mapping[int, Shaped[Array, "*shard"]],
    held: Mapping[int, Region],
) -> dict[int, Shaped[Array, "*shard"]]:
    """Puts pieces into the arrays of a device, in their own memory; arguments as in `take`.

    Returns:
      The arrays that replace those given, for the leaves of the pieces.
    """
    cuts = _cuts(pieces, held)
    filled = _put([arrays[leaf] for leaf in cuts.leaves], values, cuts.starts, sizes=cuts.sizes)
    return dict(zip(cuts.leaves, filled, strict=True))


def pack(
    pieces: Sequence[Piece],
    arrays: Mapping[int, Shaped[Array, "*shard"]],
    held: Mapping[int, Region],
    least_words: int = 0,
) -> UInt32[Array, " W"]:
    """Cuts out pieces and packs them into words; arguments as in `take`.

    Args:
      least_words: zeros are added up to this number.
    """
    cuts = _cuts(pieces, held)
    taken = [arrays[leaf] for leaf in cuts.leaves]
    return _pack(taken, cuts.starts, sizes=cuts.sizes, least_words=least_words)


def unpack(
    pieces: Sequence[Piece],
    words: UInt32[Array, " W"],
    kept: Sequence[Piece | None],
    arrays: Mapping[int, Shaped[Array, "*shard"]],
    held: Mapping[int, Region],
    dtypes: Mapping[int, np.dtype],
) -> dict[int, Shaped[Array, "*shard"]]:
    """Puts pieces that were packed into words into the arrays of a device, as `put` does.

    Args:
      kept: of each piece the part to put; the piece itself where all of it is put.
      arrays: the arrays of some leaves. A leaf without one is its piece.
      dtypes: the dtypes of the leaves, by their numbers.
    """
    cuts = _cuts([piece for piece in kept if piece is not None], held, arrays)
    filled = _unpack(
        [arrays[leaf] for leaf in cuts.leaves if leaf in arrays],
        words,
        cuts.starts,
        kinds=kinds_of(pieces, dtypes),
        kept=tuple(
            part if part is None else () if part is piece else moved(part.region, piece.region)
            for piece, part in zip(pieces, kept, strict=True)
        ),
        sizes=cuts.sizes,
    )
    return dict(zip(cuts.leaves, filled, strict=True))


def program_of(
    pieces: Sequence[Piece], held: Mapping[int, Region], dtypes: Mapping[int, np.dtype]
) -> Hashable:
    """Returns what distinguishes the program that cuts out, packs or puts some pieces.

    Args:
      held: the regions of the arrays that they are cut out of or put into.
      dtypes: the dtypes of the leaves, by their numbers.
    """
    cuts = _cuts(pieces, held)
    return cuts.sizes, tuple((shape_of(held[leaf]), dtypes[leaf]) for leaf in cuts.leaves)


def kinds_of(pieces: Iterable[Piece], dtypes: Mapping[int, np.dtype]) -> Kinds:
    """Returns the shape and dtype of each piece, from the dtypes of the leaves."""
    return tuple((shape_of(region), dtypes[leaf]) for leaf, region in pieces)


def _cuts(pieces: Sequence[Piece], held: Mapping[int, Region], first: Iterable[int] = ()) -> _Cuts:
    """Finds the pieces in the arrays of a device; some leaves come first."""
    order = dict.fromkeys([*first, *(piece.leaf for piece in pieces)])
    leaves = {leaf: index for index, leaf in enumerate(order)}
    sizes = tuple((leaves[leaf], shape_of(region)) for leaf, region in pieces)
    starts = [
        start - origin
        for leaf, region in pieces
        for (start, _), (origin, _) in zip(region, held[leaf], strict=True)
    ]
    return _Cuts(tuple(leaves), sizes, np.array(starts, np.int32))


@functools.partial(jax.jit, static_argnames="sizes")
def _take(
    arrays: Sequence[Shaped[Array, "*shard"]], starts: Int[Array, " axes"], sizes: _Sizes
) -> list[Shaped[Array, "*piece"]]:
    return [
        lax.dynamic_slice(arrays[which], first, size)
        if arrays[which].shape != size
        else arrays[which]
        for (which, size), first in zip(sizes, _split(starts, sizes), strict=True)
    ]


@functools.partial(jax.jit, static_argnames="sizes", donate_argnames="arrays")
def _put(
    arrays: Sequence[Shaped[Array, "*shard"]],
    pieces: Sequence[Shaped[Array, "*piece"]],
    starts: Int[Array, " axes"],
    sizes: _Sizes,
) -> list[Shaped[Array, "*shard"]]:
    filled = dict(enumerate(arrays))
    for (which, _), first, piece in zip(sizes, _split(starts, sizes), pieces, strict=True):
        there = filled.get(which)
        filled[which] = piece if there is None else lax.dynamic_update_slice(there, piece, first)
    return [filled[which] for which in range(len(filled))]


@functools.partial(jax.jit, static_argnames=("kinds", "kept", "sizes"), donate_argnames="arrays")
def _unpack(
    arrays: Sequence[Shaped[Array, "*shard"]],
    words: UInt32[Array, " W"],
    starts: Int[Array, " axes"],
    kinds: Kinds,
    kept: tuple[Region | None, ...],
    sizes: _Sizes,
) -> list[Shaped[Array, "*shard"]]:
    pieces, begin = [], 0
    for (shape, dtype), region in zip(kinds, kept, strict=True):
        end = begin + math.ceil(math.prod(shape) * dtype.itemsize / WORD_BYTES)
        if region is not None:
            piece = _from_words(words[begin:end], shape, dtype)
            pieces.append(piece[tuple(slice(*interval) for interval in region)])
        begin = end
    return _put(arrays, pieces, starts, sizes=sizes)


@functools.partial(jax.jit, static_argnames=("sizes", "least_words"))
def _pack(
    arrays: Sequence[Shaped[Array, "*shard"]],
    starts: Int[Array, " axes"],
    sizes: _Sizes,
    least_words: int,
) -> UInt32[Array, " W"]:
    parts = [_to_words(piece) for piece in _take(arrays, starts, sizes)]
    padding = max(0, least_words - sum(part.size for part in parts))
    return jnp.concatenate([*parts, jnp.zeros((padding,), jnp.uint32)])


def _split(starts: Int[Array, " axes"], sizes: _Sizes) -> list[list[Int[Array, ""]]]:
    """Splits the starts by piece."""
    values, split = iter(range(starts.size)), []
    for _, size in sizes:
        split.append([starts[next(values)] for _ in size])
    return split


def _to_words(x: Shaped[Array, "*shape"]) -> UInt32[Array, " W"]:
    flat = x.reshape(-1)
    if x.dtype == jnp.bool_:
        flat = flat.astype(jnp.uint8)
    units = lax.bitcast_convert_type(flat, UNSIGNED[flat.dtype.itemsize]).reshape(-1)
    per_word = WORD_BYTES // units.dtype.itemsize
    if per_word == 1:
        return units
    units = jnp.pad(units, (0, -units.size % per_word))
    return lax.bitcast_convert_type(units.reshape(-1, per_word), jnp.uint32)


def _from_words(
    words: UInt32[Array, " W"], shape: tuple[int, ...], dtype: np.dtype
) -> Shaped[Array, "*shape"]:
    if dtype.itemsize > WORD_BYTES:
        return lax.bitcast_convert_type(words.reshape(-1, 2), dtype).reshape(shape)
    units = lax.bitcast_convert_type(words, UNSIGNED[dtype.itemsize]).reshape(-1)
    units = units[: math.prod(shape)]
    if dtype == jnp.bool_:
        return units.astype(jnp.bool_).reshape(shape)
    return lax.bitcast_convert_type(units, dtype).reshape(shape)
