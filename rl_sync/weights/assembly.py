"""Assembly of a device's part of the parameters from pieces that arrive one after the other."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Shaped, UInt32

from rl_sync.weights.packing import Kinds, put, unpack
from rl_sync.weights.pieces import Piece
from rl_sync.weights.regions import Region, overlap, shape_of, within

T = TypeVar("T")

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

    def make_room(self, leaves: Iterable[int]) -> None:
        """Makes room for leaves of which less than the whole part arrives, in one program."""
        self._room(leaves)

    def add(self, pieces: Sequence[Piece], values: Sequence[Shaped[Array, "*piece"]]) -> None:
        """Adds pieces on the device, as far as it will have them."""
        parts: dict[Piece, Shaped[Array, "*piece"]] = {}
        for piece, kept, value in zip(pieces, self._kept(pieces), values, strict=True):
            if kept is None:
                continue
            if kept != piece:
                value = value[within(kept.region, piece.region)]
            if self._is_whole(kept):
                self._arrays[kept.leaf] = value
            else:
                parts[kept] = value
        for group in groups(list(parts)):
            room = self._room(piece.leaf for piece in group)
            self._arrays |= put(group, [parts[piece] for piece in group], room, self._held)

    def add_packed(self, pieces: Sequence[Piece], words: UInt32[Array, " W"]) -> None:
        """Adds pieces that were packed into words."""
        kept = self._kept(pieces)
        room = self._room(part.leaf for part in kept if part and not self._is_whole(part))
        self._arrays |= unpack(pieces, words, kept, room, held=self._held, dtypes=self._dtypes)

    def _kept(self, pieces: Sequence[Piece]) -> list[Piece | None]:
        """Returns of each piece the part that the device will have."""
        kept: list[Piece | None] = []
        for piece in pieces:
            held = self._held.get(piece.leaf)
            shared = None if held is None else overlap(piece.region, held)
            if shared is None:
                kept.append(None)
            else:
                kept.append(piece if shared == piece.region else Piece(piece.leaf, shared))
        return kept

    def _is_whole(self, piece: Piece) -> bool:
        return piece.region == self._held[piece.leaf]

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


def groups(pieces: Sequence[T]) -> list[Sequence[T]]:
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
