"""Pieces of a device's arrays: cut where they are sent, assembled where they arrive.

The position of a piece in its array is an argument of the programs, so that all pieces of one shape
share one compiled program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Int, Shaped

from rl_sync.weights.cells import Piece, Region, overlap, shape_of, within

_Starts = Sequence[Int[np.ndarray, " axes"]]


def take(
    pieces: Sequence[Piece],
    arrays: Mapping[int, Shaped[Array, "*shard"]],
    held: Mapping[int, Region],
) -> list[Shaped[Array, "*piece"]]:
    """Cuts pieces out of the arrays of a device; a whole array is returned unchanged.

    Args:
      pieces: the pieces.
      arrays: the device's part of each leaf, by the leaf's number.
      held: the regions of these parts.
    """
    cut = [piece for piece in pieces if piece.region != held[piece.leaf]]
    made = iter(
        _take(
            [arrays[piece.leaf] for piece in cut],
            [_start(piece, held) for piece in cut],
            shapes=tuple(shape_of(piece.region) for piece in cut),
        )
        if cut
        else ()
    )
    whole = [piece.region == held[piece.leaf] for piece in pieces]
    return [
        arrays[piece.leaf] if is_whole else next(made)
        for piece, is_whole in zip(pieces, whole, strict=True)
    ]


class LeafAssembly:
    """Assembles a device's part of every leaf from pieces that arrive one after the other.

    A piece that is the whole part is kept as it is. Other pieces are written into place at once, so
    that nothing but the parts stays in memory.

    Args:
      device: the device.
      dtypes: dtype of each leaf, by the leaf's number.
      held: region that the device will have of each leaf.
    """

    def __init__(
        self, device: jax.Device, dtypes: Mapping[int, np.dtype], held: Mapping[int, Region]
    ) -> None:
        self._device, self._dtypes, self._held = device, dtypes, held
        self._arrays: dict[int, Shaped[Array, "*shard"]] = {}

    def make_room(self, leaves: Iterable[int]) -> None:
        """Allocates the leaves whose part does not arrive as one piece."""
        for leaf in leaves:
            self._arrays[leaf] = self._room(leaf)

    def add(self, pieces: Sequence[Piece], values: Sequence[Shaped[Array, "*piece"]]) -> None:
        """Writes pieces into the device's parts; elements outside of the parts are dropped."""
        put: dict[Piece, Shaped[Array, "*piece"]] = {}
        for piece, value in zip(pieces, values, strict=True):
            held = self._held.get(piece.leaf)
            shared = None if held is None else overlap(piece.region, held)
            if shared is None:
                continue
            if shared != piece.region:
                value = value[within(shared, piece.region)]
            if shared == held:
                self._arrays[piece.leaf] = value
            else:
                put[Piece(piece.leaf, shared)] = value
        if put:
            leaves = list(dict.fromkeys(piece.leaf for piece in put))
            filled = _put(
                [self._room(leaf) for leaf in leaves],
                list(put.values()),
                [_start(piece, self._held) for piece in put],
                which=tuple(leaves.index(piece.leaf) for piece in put),
            )
            self._arrays |= zip(leaves, filled, strict=True)

    def pop(self, leaf: int) -> Shaped[Array, "*shard"]:
        """Removes and returns the part of a leaf; elements that have not arrived are zeros."""
        self._arrays[leaf] = self._room(leaf)
        return self._arrays.pop(leaf)

    def _room(self, leaf: int) -> Shaped[Array, "*shard"]:
        """Returns the elements of a leaf that have arrived, and zeros elsewhere."""
        if leaf in self._arrays:
            return self._arrays[leaf]
        return zeros(self._device, shape_of(self._held[leaf]), self._dtypes[leaf])


def zeros(device: jax.Device, shape: tuple[int, ...], dtype: np.dtype) -> Shaped[Array, "*shape"]:
    """Makes zeros on a device; `jnp.zeros` would make them on the first device, then copy them."""
    return _zeros(shape, dtype, SingleDeviceSharding(device))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _zeros(
    shape: tuple[int, ...], dtype: np.dtype, place: SingleDeviceSharding
) -> Shaped[Array, "*shape"]:
    return lax.with_sharding_constraint(jnp.zeros(shape, dtype), place)


def _start(piece: Piece, held: Mapping[int, Region]) -> Int[np.ndarray, " axes"]:
    """Returns the first index of a piece in the device's array, along each axis."""
    return np.array([cut.start for cut in within(piece.region, held[piece.leaf])], np.int32)


@functools.partial(jax.jit, static_argnames="shapes")
def _take(
    arrays: Sequence[Shaped[Array, "*shard"]],
    starts: _Starts,
    shapes: tuple[tuple[int, ...], ...],
) -> list[Shaped[Array, "*piece"]]:
    return [
        lax.dynamic_slice(array, list(start), shape)
        for array, start, shape in zip(arrays, starts, shapes, strict=True)
    ]


@functools.partial(jax.jit, static_argnames="which", donate_argnames="arrays")
def _put(
    arrays: list[Shaped[Array, "*shard"]],
    pieces: Sequence[Shaped[Array, "*piece"]],
    starts: _Starts,
    which: tuple[int, ...],
) -> list[Shaped[Array, "*shard"]]:
    for number, piece, start in zip(which, pieces, starts, strict=True):
        arrays[number] = lax.dynamic_update_slice(arrays[number], piece, list(start))
    return arrays
