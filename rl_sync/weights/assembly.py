"""Assembly of a device's part of the parameters from pieces that arrive one after the other."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Shaped, UInt32

from rl_sync.weights.packing import Kinds, kinds_of, put, unpack
from rl_sync.weights.pieces import Piece
from rl_sync.weights.regions import Region, overlap, shape_of, within

_GROUP = 8


class Assembly:
    """Assembles a device's part of every leaf.

    A piece that is the whole part is kept as it is. Others are put into their place at once, so
    that nothing but the parts stays in memory.

    Args:
      dtypes: the dtype of each leaf, by the leaf's number.
      held: the region that the device will have of each leaf.
    """

    def __init__(
        self, device: jax.Device, dtypes: Mapping[int, np.dtype], held: Mapping[int, Region]
    ) -> None:
        self._device, self._dtypes, self._held = device, dtypes, held
        self._arrays: dict[int, Shaped[Array, "*shard"]] = {}

    def add(self, pieces: Sequence[Piece], values: Sequence[Shaped[Array, "*piece"]]) -> None:
        """Adds pieces on the device, as far as it will have them."""
        parts: dict[Piece, Shaped[Array, "*piece"]] = {}
        for (leaf, region), value in zip(pieces, values, strict=True):
            shared = overlap(region, self._held[leaf]) if leaf in self._held else None
            if shared is None:
                continue
            if shared != region:
                value = value[within(shared, region)]
            if shared == self._held[leaf]:
                self._arrays[leaf] = value
            else:
                parts[Piece(leaf, shared)] = value
        for group in groups(list(parts)):
            room = self._room(piece.leaf for piece in group)
            self._arrays |= put(group, [parts[piece] for piece in group], room, self._held)

    def add_packed(self, pieces: Sequence[Piece], words: UInt32[Array, " W"]) -> None:
        """Adds pieces that were packed into words."""
        self.add(pieces, unpack(words, kinds=kinds_of(pieces, self._dtypes)))

    def pop(self, leaf: int) -> Shaped[Array, "*shard"]:
        """Removes and returns the part of a leaf; zeros where nothing has arrived."""
        self._room([leaf])
        return self._arrays.pop(leaf)

    def _room(self, leaves: Iterable[int]) -> dict[int, Shaped[Array, "*shard"]]:
        """Returns what has arrived of some leaves; zeros for those of which nothing has."""
        room = dict.fromkeys(leaves)
        missing = [leaf for leaf in room if leaf not in self._arrays]
        kinds = tuple((shape_of(self._held[leaf]), self._dtypes[leaf]) for leaf in missing)
        self._arrays |= zip(missing, blanks(self._device, kinds), strict=True)
        return {leaf: self._arrays[leaf] for leaf in room}


def groups(pieces: Sequence[Piece]) -> list[Sequence[Piece]]:
    """Splits pieces into small groups, as programs for hundreds of pieces take long to compile.

    Programs for small groups are often the same.
    """
    return [pieces[i : i + _GROUP] for i in range(0, len(pieces), _GROUP)]


def blanks(device: jax.Device, kinds: Kinds) -> list[Shaped[Array, "*shape"]]:
    """Makes zeros of some shapes and dtypes on a device, in one program."""
    return _zeros(kinds, SingleDeviceSharding(device)) if kinds else []


@functools.partial(jax.jit, static_argnums=(0, 1))
def _zeros(kinds: Kinds, place: SingleDeviceSharding) -> list[Shaped[Array, "*shape"]]:
    made = [jnp.zeros(*kind) for kind in kinds]
    return [jax.lax.with_sharding_constraint(x, place) for x in made]
