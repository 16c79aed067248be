"""The manifest of a trainer: the parts that each process offers, and their form.

Parts are the arrays that are transferred: a large piece of a leaf alone, in its own shape and
dtype, or many small pieces packed into one array of bytes. A manifest is the same for all versions
of a run.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped, UInt8

from rl_sync.types import Params
from rl_sync.weights.digest_plan import check_dtype
from rl_sync.weights.regions import (
    Places,
    Region,
    cut,
    device_regions,
    overlap,
    shape_of,
    size_of,
)

PACKED_BELOW_BYTES = 1 << 20
"""Smaller pieces are packed together."""

BUCKET_BYTES = 16 << 20
"""The largest size of a packed array."""


class Leaf(NamedTuple):
    """One array of the parameters: its path as text, shape, and dtype by name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} of {self.dtype}{list(self.shape)}"


class Piece(NamedTuple):
    """A region of one leaf; leaves are numbered in flattening order."""

    leaf: int
    region: Region


class Part(NamedTuple):
    """One array that is transferred.

    Attributes:
      holder: the index of the trainer's process that offers it.
      device: the id of the device there.
      pieces: its pieces; several are packed into bytes, a single one is sent as it is.
    """

    holder: int
    device: int
    pieces: tuple[Piece, ...]


class Manifest(NamedTuple):
    """All parts that are offered of each version.

    Attributes:
      leaves: the leaves in flattening order.
      parts: the parts; together they hold every element of every leaf once.
    """

    leaves: tuple[Leaf, ...]
    parts: tuple[Part, ...]

    def to_wire(self) -> list[Any]:
        """Converts to nested lists of numbers and strings."""
        return [
            [list(leaf) for leaf in self.leaves],
            [[p.holder, p.device, [list(piece) for piece in p.pieces]] for p in self.parts],
        ]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> Manifest:
        """Inverts `to_wire`."""
        leaves, parts = wire
        return cls(
            tuple(Leaf(name, tuple(shape), dtype) for name, shape, dtype in leaves),
            tuple(
                Part(
                    holder,
                    device,
                    tuple(Piece(leaf, tuple((a, b) for a, b in region)) for leaf, region in pieces),
                )
                for holder, device, pieces in parts
            ),
        )

    def like(self, part: Part) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of a part as it is transferred."""
        likes = self._pieces_like(part)
        if len(likes) == 1:
            return likes[0]
        nbytes = sum(like.size * like.dtype.itemsize for like in likes)
        return jax.ShapeDtypeStruct((nbytes,), jnp.uint8)

    def pack(self, part: Part, pieces: list[Shaped[Array, "*piece"]]) -> Shaped[Array, "*part"]:
        """Makes a part from its pieces' values, as a new array."""
        if len(pieces) == 1:
            return jnp.copy(pieces[0])
        return jnp.concatenate([_to_bytes(piece) for piece in pieces])

    def unpack(self, part: Part, value: Shaped[Array, "*part"]) -> list[Shaped[Array, "*piece"]]:
        """Inverts `pack`."""
        if len(part.pieces) == 1:
            return [value]
        likes = self._pieces_like(part)
        return _unpack(value, tuple((like.shape, like.dtype) for like in likes))

    def _pieces_like(self, part: Part) -> list[jax.ShapeDtypeStruct]:
        return [
            jax.ShapeDtypeStruct(shape_of(piece.region), self.leaves[piece.leaf].dtype)
            for piece in part.pieces
        ]


@functools.partial(jax.jit, static_argnums=1)
def _unpack(
    value: UInt8[Array, " bytes"], pieces: tuple[tuple[tuple[int, ...], np.dtype], ...]
) -> list[Shaped[Array, "*piece"]]:
    ends = list(itertools.accumulate(math.prod(shape) * dtype.itemsize for shape, dtype in pieces))
    chunks = [value[start:end] for start, end in itertools.pairwise([0, *ends])]
    return [_from_bytes(x, *piece) for x, piece in zip(chunks, pieces, strict=True)]


def _to_bytes(x: Shaped[Array, "*piece"]) -> UInt8[Array, " bytes"]:
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    return lax.bitcast_convert_type(x, jnp.uint8).reshape(-1)


def _from_bytes(
    x: UInt8[Array, " bytes"], shape: tuple[int, ...], dtype: np.dtype
) -> Shaped[Array, "*piece"]:
    if dtype == jnp.bool_:
        return x.reshape(shape).astype(jnp.bool_)
    split = shape if dtype.itemsize == 1 else (*shape, dtype.itemsize)
    return lax.bitcast_convert_type(x.reshape(split), dtype)


def leaves_of(like: Params) -> tuple[Leaf, ...]:
    """Lists the leaves of a pytree.

    Raises:
      TypeError: a leaf's dtype has no plain bits.
    """
    leaves = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(like):
        name = jax.tree_util.keystr(path)
        check_dtype(name, leaf.dtype)
        leaves.append(Leaf(name, tuple(leaf.shape), jnp.dtype(leaf.dtype).name))
    return tuple(leaves)


def first_difference(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> tuple[str, str] | None:
    """Describes the first pair of leaves that differ; None if all are the same."""
    for pair in itertools.zip_longest(leaves, others):
        if pair[0] != pair[1]:
            first, second = (str(leaf) if leaf else "nothing" for leaf in pair)
            return first, second
    return None


def plan_manifest(like: Params, places: Places = ()) -> Manifest:
    """Plans the parts: a piece lies in one shard here, and is needed whole or not at all there.

    Args:
      like: the parameters in the trainer's shardings. If several devices hold a piece, the one with
        the least to offer so far offers it.
      places: the regions that explorers are expected to hold, so that each gets what it needs and
        no more. An explorer with other regions gets pieces of which it needs only a part.
    """
    leaves = leaves_of(like)
    load: collections.Counter[jax.Device] = collections.Counter()
    parts: list[Part] = []
    small: dict[tuple[jax.Device, frozenset[int]], list[Piece]] = {}
    held: collections.Counter[tuple[jax.Device, frozenset[int]]] = collections.Counter()

    def add(device: jax.Device, pieces: Iterable[Piece]) -> None:
        parts.append(Part(device.process_index, device.id, tuple(pieces)))

    for index, (leaf, described) in enumerate(zip(jax.tree.leaves(like), leaves, strict=True)):
        holders: dict[Region, list[jax.Device]] = {}
        for device, region in device_regions(leaf).items():
            holders.setdefault(region, []).append(device)
        wanted = [place[index] for place in places]
        for region, devices in holders.items():
            for cell in cut(region, wanted):
                nbytes = size_of(cell) * jnp.dtype(described.dtype).itemsize
                if not nbytes:
                    continue
                device = min(devices, key=lambda device: (load[device], device.id))
                load[device] += nbytes
                piece = Piece(index, cell)
                if nbytes >= PACKED_BELOW_BYTES:
                    add(device, [piece])
                    continue
                readers = (i for i, place in enumerate(wanted) if overlap(place, cell))
                key = device, frozenset(readers)
                small.setdefault(key, []).append(piece)
                held[key] += nbytes
                if held[key] >= BUCKET_BYTES:
                    add(device, small.pop(key))
                    del held[key]
    for (device, _), pieces in small.items():
        add(device, pieces)
    return Manifest(leaves, tuple(parts))
