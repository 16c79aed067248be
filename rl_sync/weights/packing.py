"""Packing: cuts boxes out of arrays and puts them into others, bit for bit.

Many small transfers are slow. So small pieces are sent as one array of 32-bit words, one after the
other; each begins at a whole word. The start of a piece in its array is an argument, so that pieces
of one size compile once.

Letters in shapes: W words of a bucket.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, Shaped, UInt32

from rl_sync.weights.digest import UNSIGNED
from rl_sync.weights.routes import WORD_BYTES, Box, Piece


class Cut(NamedTuple):
    """Places of a bucket's pieces in the arrays of one device.

    Attributes:
      leaves: the numbers of the parameters that they are pieces of, each once.
      sizes: for each piece the place of its parameter in `leaves`, and its shape.
      starts: the first index of each piece along each axis, one piece after the other.
    """

    leaves: tuple[int, ...]
    sizes: tuple[tuple[int, tuple[int, ...]], ...]
    starts: Int[np.ndarray, " axes"]


def cut_of(pieces: Sequence[Piece], held: Sequence[Box]) -> Cut:
    """Finds the pieces of a bucket on a device.

    Args:
      held: the box of each parameter that the device holds.
    """
    leaves = tuple(dict.fromkeys(piece.leaf for piece in pieces))
    sizes, starts = [], []
    for leaf, box in pieces:
        sizes.append((leaves.index(leaf), tuple(high - low for low, high in box)))
        starts += [low - first for (low, _), (first, _) in zip(box, held[leaf], strict=True)]
    return Cut(leaves, tuple(sizes), np.array(starts, np.int32))


@functools.partial(jax.jit, static_argnames="sizes")
def take(
    arrays: Sequence[Shaped[Array, "*shape"]],
    starts: Int[Array, " axes"],
    sizes: tuple[tuple[int, tuple[int, ...]], ...],
) -> list[Shaped[Array, "*piece"]]:
    """Cuts the pieces of a cut out of arrays.

    Args:
      arrays: the parameters that the cut names.
    """
    return [
        lax.dynamic_slice(arrays[which], first, size)
        for (which, size), first in zip(sizes, _split(starts, sizes), strict=True)
    ]


@functools.partial(jax.jit, static_argnames="sizes", donate_argnames="arrays")
def put(
    arrays: Sequence[Shaped[Array, "*shape"]],
    pieces: Sequence[Shaped[Array, "*piece"]],
    starts: Int[Array, " axes"],
    sizes: tuple[tuple[int, tuple[int, ...]], ...],
) -> list[Shaped[Array, "*shape"]]:
    """Puts the pieces of a cut into arrays, in their own memory."""
    filled = list(arrays)
    cuts = zip(sizes, _split(starts, sizes), pieces, strict=True)
    for (which, _), first, piece in cuts:
        filled[which] = lax.dynamic_update_slice(filled[which], piece, first)
    return filled


@functools.partial(jax.jit, static_argnames=("sizes", "words"))
def pack(
    arrays: Sequence[Shaped[Array, "*shape"]],
    starts: Int[Array, " axes"],
    sizes: tuple[tuple[int, tuple[int, ...]], ...],
    words: int,
) -> UInt32[Array, " W"]:
    """Packs the pieces of a cut into a bucket of words.

    Args:
      arrays: the parameters that the cut names.
      words: W.
    """
    parts = [_to_words(piece) for piece in take(arrays, starts, sizes)]
    padding = words - sum(part.size for part in parts)
    return jnp.concatenate([*parts, jnp.zeros((padding,), jnp.uint32)])


@functools.partial(jax.jit, static_argnames="sizes", donate_argnames="arrays")
def unpack(
    arrays: Sequence[Shaped[Array, "*shape"]],
    bucket: UInt32[Array, " W"],
    starts: Int[Array, " axes"],
    sizes: tuple[tuple[int, tuple[int, ...]], ...],
) -> list[Shaped[Array, "*shape"]]:
    """Puts the pieces of a bucket into arrays, in their own memory."""
    pieces, begin = [], 0
    for which, size in sizes:
        dtype = arrays[which].dtype
        end = begin + math.ceil(math.prod(size) * dtype.itemsize / WORD_BYTES)
        pieces.append(_from_words(bucket[begin:end], size, dtype))
        begin = end
    return put(arrays, pieces, starts, sizes)


def _split(
    starts: Int[Array, " axes"], sizes: tuple[tuple[int, tuple[int, ...]], ...]
) -> list[list[Int[Array, ""]]]:
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
