"""Parts: the arrays that a trainer's devices offer, and that explorers assemble into shards.

A part is a cell of one leaf. A *manifest* lists the parts that each process offers; it is the same
for all versions of a run.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Shaped

from rl_sync.types import Params
from rl_sync.weights.assembly import LeafAssembly
from rl_sync.weights.cells import (
    AbstractArray,
    DeviceRegions,
    Piece,
    cells,
    device_regions,
    moved,
    overlap,
    shape_of,
    size_of,
)
from rl_sync.weights.copies import Cut, cut_out
from rl_sync.weights.digest import check_dtype

_PROGRAMS = 4


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
      holder: index of the trainer's process that offers it.
      device: id of the device in that process.
      piece: its leaf and region.
    """

    holder: int
    device: int
    piece: Piece


class Manifest(NamedTuple):
    """All parts of each offered version.

    Attributes:
      leaves: the leaves in flattening order.
      parts: parts, leaf by leaf; together they cover every element of every leaf once.
    """

    leaves: tuple[Leaf, ...]
    parts: tuple[Part, ...]

    @property
    def dtypes(self) -> list[np.dtype]:
        """The dtype of each leaf."""
        return [jnp.dtype(leaf.dtype) for leaf in self.leaves]

    @property
    def itemsizes(self) -> dict[int, int]:
        """Bytes of an element of each part."""
        dtypes = self.dtypes
        return {number: dtypes[part.piece.leaf].itemsize for number, part in enumerate(self.parts)}

    @property
    def sizes(self) -> dict[int, int]:
        """Bytes of each part."""
        itemsizes = self.itemsizes
        return {
            number: size_of(part.piece.region) * itemsizes[number]
            for number, part in enumerate(self.parts)
        }


def leaves_of(params: Params) -> tuple[Leaf, ...]:
    """Lists the leaves of a pytree.

    Raises:
      TypeError: a leaf's dtype has no plain bits.
    """
    leaves = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        check_dtype(name, leaf.dtype)
        leaves.append(Leaf(name, tuple(leaf.shape), jnp.dtype(leaf.dtype).name))
    return tuple(leaves)


def first_difference(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> tuple[str, str] | None:
    """Describes the first pair of leaves that differ; None if all are equal."""
    for pair in itertools.zip_longest(leaves, others):
        if pair[0] != pair[1]:
            first, second = (str(leaf) if leaf else "nothing" for leaf in pair)
            return first, second
    return None


def plan_manifest(params: Params, expected: DeviceRegions = ()) -> Manifest:
    """Plans the parts of parameters.

    Args:
      params: abstract params in the trainer's shardings. If several devices hold a cell, the device
        that has the least to offer so far offers it.
      expected: regions that explorers are expected to hold, so that each fetches only what it
        needs. An explorer with other regions fetches parts of which it needs only a piece.
    """
    leaves = leaves_of(params)
    offered: collections.Counter[jax.Device] = collections.Counter()
    parts = []
    for number, leaf in enumerate(jax.tree.leaves(params)):
        regions = device_regions(leaf)
        devices = list(regions)
        for cell in cells(regions.values(), [of[number] for of in expected]):
            device = min((devices[i] for i in cell.holders), key=lambda d: (offered[d], d.id))
            offered[device] += size_of(cell.region) * np.dtype(leaf.dtype).itemsize
            piece = Piece(number, cell.region)
            parts.append(Part(device.process_index, device.id, piece))
    return Manifest(leaves, tuple(parts))


class _Cutting(NamedTuple):
    """A program that copies parts of some leaves on one device."""

    device: jax.Device
    parts: tuple[int, ...]
    leaves: tuple[int, ...]
    cuts: tuple[Cut, ...]


class Cutter:
    """Cuts versions into the parts that this process offers.

    Args:
      manifest: the parts.
      params: abstract params in the trainer's shardings.

    Attributes:
      first: parts that are cut first.
    """

    def __init__(self, manifest: Manifest, params: Params) -> None:
        self._planned = manifest.leaves
        regions = [device_regions(leaf) for leaf in jax.tree.leaves(params)]
        self._cuttings: list[_Cutting] = []
        self.first: list[int] = []
        for device in jax.local_devices():
            mine = [
                number
                for number, part in enumerate(manifest.parts)
                if (part.holder, part.device) == (device.process_index, device.id)
            ]
            for run in _runs(mine, manifest):
                pieces = [manifest.parts[number].piece for number in run]
                leaves = tuple(dict.fromkeys(piece.leaf for piece in pieces))
                cuts = tuple(
                    (leaves.index(leaf), moved(region, regions[leaf][device]))
                    for leaf, region in pieces
                )
                self._cuttings.append(_Cutting(device, run, leaves, cuts))
                if run[0] == mine[0]:
                    self.first += run

    def check(self, params: Params) -> None:
        """Raises a ValueError unless `params` matches the plan."""
        if (pair := first_difference(leaves_of(params), self._planned)) is not None:
            raise ValueError(
                f"The parameters have {pair[0]} where {pair[1]} was planned: make the publisher"
                " from the same model."
            )

    def cut(self, params: Params) -> dict[int, Shaped[Array, "*part"]]:
        """Copies the parts on the devices, without waiting; returns them by their numbers.

        Raises:
          ValueError: `params` does not match the plan.
        """
        self.check(params)
        leaves = jax.tree.leaves(params)
        parts: dict[int, Shaped[Array, "*part"]] = {}
        for device, numbers, needed, cuts in self._cuttings:
            copies = cut_out([_shard(leaves[leaf], device) for leaf in needed], cuts)
            parts |= zip(numbers, copies, strict=True)
        return parts


class Arrivals:
    """Assembles this process's shards of each version from parts.

    Args:
      params: abstract params in the explorer's shardings.
      manifest: the parts.

    Attributes:
      manifest: the parts.
      tree: structure of the parameters, whose leaves are assembled in flattening order.
      wanted: parts that this process needs, in the order of use: shape and dtype of each, and the
        device where it arrives.
    """

    def __init__(self, params: Params, manifest: Manifest) -> None:
        self.manifest = manifest
        self._leaves, self.tree = jax.tree.flatten(params)
        self._dtypes = dict(enumerate(manifest.dtypes))
        self._held = [
            {
                device: region
                for device, region in device_regions(leaf).items()
                if device.process_index == jax.process_index()
            }
            for leaf in self._leaves
        ]
        self._readers: list[dict[int, list[jax.Device]]] = [{} for _ in self._leaves]
        self._pieces = [part.piece for part in manifest.parts]
        self.wanted: dict[int, jax.ShapeDtypeStruct] = {}
        for number, (leaf, region) in enumerate(self._pieces):
            held = self._held[leaf]
            readers = [device for device in held if overlap(region, held[device]) is not None]
            if readers:
                self._readers[leaf][number] = readers
                self.wanted[number] = jax.ShapeDtypeStruct(
                    shape_of(region),
                    self._dtypes[leaf],
                    sharding=SingleDeviceSharding(readers[0]),
                )

    def assembled(self, arrive: Callable[[int], Array]) -> Iterator[Array]:
        """Yields the leaves of one version, as soon as their local shards are complete.

        Args:
          arrive: returns a part once it has arrived; called once for each wanted part.
        """
        for number, (leaf, held) in enumerate(zip(self._leaves, self._held, strict=True)):
            assemblies = {
                device: LeafAssembly(device, self._dtypes, {number: region})
                for device, region in held.items()
            }
            for part, (first, *others) in self._readers[number].items():
                value = arrive(part)
                assemblies[first].add([self._pieces[part]], [value])
                for other in others:
                    copy = jax.device_put(value, other)
                    assemblies[other].add([self._pieces[part]], [copy])
            yield _whole(leaf, [assembly.pop(number) for assembly in assemblies.values()])


def _runs(numbers: Sequence[int], manifest: Manifest) -> list[tuple[int, ...]]:
    """Splits parts into a few consecutive runs of about equal numbers of bytes."""
    dtypes = manifest.dtypes
    sizes = [
        size_of(region) * dtypes[leaf].itemsize
        for leaf, region in (manifest.parts[number].piece for number in numbers)
    ]
    runs: Mapping[int, list[int]] = collections.defaultdict(list)
    for number, end in zip(numbers, itertools.accumulate(sizes), strict=True):
        runs[(end - 1) * _PROGRAMS // sum(sizes)].append(number)
    return [tuple(run) for run in runs.values()]


def _shard(leaf: Array, device: jax.Device) -> Shaped[Array, "*shard"]:
    return next(shard.data for shard in leaf.addressable_shards if shard.device == device)


def _whole(leaf: AbstractArray, shards: list[Array]) -> Array:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return shards[0]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)
