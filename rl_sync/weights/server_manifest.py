"""The manifest of a trainer: the parts that each process offers, and their form.

Parts are the arrays that are transferred: a large piece of a leaf alone, in its own shape and
dtype, or many small pieces packed into words. A manifest is the same for all versions of a run.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.types import Params
from rl_sync.weights.digest import check_dtype
from rl_sync.weights.packing import kinds_of
from rl_sync.weights.pieces import Piece, shares, word_count
from rl_sync.weights.regions import DeviceRegions, device_regions, size_of

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


class Part(NamedTuple):
    """One array that is transferred.

    Attributes:
      holder: the index of the trainer's process that offers it.
      device: the id of the device there.
      pieces: its pieces; several are packed into words, a single one is sent as it is.
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

    @property
    def dtypes(self) -> Mapping[int, np.dtype]:
        """The dtype of each leaf by its number."""
        return {number: jnp.dtype(leaf.dtype) for number, leaf in enumerate(self.leaves)}

    def likes(self) -> list[jax.ShapeDtypeStruct]:
        """Returns the shape and dtype of each part as it is transferred."""
        dtypes = self.dtypes
        itemsizes = [dtype.itemsize for dtype in dtypes.values()]
        return [
            jax.ShapeDtypeStruct(*kinds_of(part.pieces, dtypes)[0])
            if len(part.pieces) == 1
            else jax.ShapeDtypeStruct((word_count(part.pieces, itemsizes),), jnp.uint32)
            for part in self.parts
        ]


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


def plan_manifest(like: Params, expected: DeviceRegions = ()) -> Manifest:
    """Plans the parts: a piece lies in one shard here, and is needed whole or not at all there.

    Args:
      like: the parameters in the trainer's shardings. If several devices hold a piece, the one with
        the least to offer so far offers it.
      expected: the regions that explorers are expected to hold, so that each gets what it needs and
        no more. An explorer with other regions gets pieces of which it needs only a part.
    """
    leaves = leaves_of(like)
    offered: collections.Counter[jax.Device] = collections.Counter()
    parts: list[Part] = []
    small: dict[tuple[jax.Device, tuple[int, ...]], list[Piece]] = {}
    held: collections.Counter[tuple[jax.Device, tuple[int, ...]]] = collections.Counter()

    def add(device: jax.Device, pieces: Sequence[Piece]) -> None:
        parts.append(Part(device.process_index, device.id, tuple(pieces)))

    for number, (leaf, described) in enumerate(zip(jax.tree.leaves(like), leaves, strict=True)):
        regions = device_regions(leaf)
        devices = list(regions)
        for holders, cells in shares(regions.values(), [of[number] for of in expected]):
            for region, readers in cells:
                nbytes = size_of(region) * jnp.dtype(described.dtype).itemsize
                device = min((devices[i] for i in holders), key=lambda d: (offered[d], d.id))
                offered[device] += nbytes
                piece = Piece(number, region)
                if nbytes >= PACKED_BELOW_BYTES:
                    add(device, [piece])
                    continue
                key = device, readers
                small.setdefault(key, []).append(piece)
                held[key] += nbytes
                if held[key] >= BUCKET_BYTES:
                    add(device, small.pop(key))
                    del held[key]
    for (device, _), pieces in small.items():
        add(device, pieces)
    return Manifest(leaves, tuple(parts))
