"""The planner of transfers: cuts the regions that devices hold of each leaf into cells.

A region is a start and a stop for each axis; the region of a scalar is empty. A cell lies in one
shard of the trainer, and every device of an explorer needs either the whole cell or nothing of it.
The plan is pure: it consists of leaf and device numbers, without arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
from jax.sharding import NamedSharding

from rl_sync.types import Params

AbstractArray = jax.Array | jax.ShapeDtypeStruct
"""A leaf of abstract params; a `jax.ShapeDtypeStruct` may be without a sharding."""

Region = tuple[tuple[int, int], ...]

DeviceRegions = tuple[tuple[Region, ...], ...]
"""For each device, the regions of all leaves in flattening order."""


class Piece(NamedTuple):
    """A region of one leaf; leaves are numbered in flattening order."""

    leaf: int
    region: Region


class Cell(NamedTuple):
    """A region of a leaf that some devices hold and others need.

    Attributes:
      holders: numbers of the devices that hold it.
      readers: numbers of the devices that need it.
    """

    region: Region
    holders: tuple[int, ...]
    readers: tuple[int, ...]


def cells(sources: Iterable[Region], targets: Sequence[Region]) -> Iterator[Cell]:
    """Cuts a leaf into cells that cover each of its elements once; cells of one shard are adjacent.

    Args:
      sources: region of the leaf that each device holds.
      targets: region that each device of the other side will hold.
    """
    holders: dict[Region, list[int]] = {}
    for source, region in enumerate(sources):
        holders.setdefault(region, []).append(source)
    for region, devices in holders.items():
        needed: dict[Region, list[int]] = {}
        for target, other in enumerate(targets):
            if (shared := overlap(region, other)) is not None:
                needed.setdefault(shared, []).append(target)
        found = [cell for cell in cut(region, needed) if size_of(cell)]
        apart = needed.keys() <= set(found)  # True on device grids; saves comparing all pairs.
        for cell in found:
            readers = needed.get(cell, ()) if apart else _readers(cell, needed)
            yield Cell(cell, tuple(devices), tuple(readers))


def _readers(cell: Region, needed: Mapping[Region, list[int]]) -> list[int]:
    found = [needed[region] for region in needed if overlap(region, cell) is not None]
    return sorted(target for targets in found for target in targets)


def shape_of(region: Region) -> tuple[int, ...]:
    """Returns the length of a region along each axis."""
    return tuple(stop - start for start, stop in region)


def size_of(region: Region) -> int:
    """Returns the number of elements of a region."""
    return math.prod(shape_of(region))


def overlap(one: Region, other: Region) -> Region | None:
    """Returns the intersection of two regions; None if they do not overlap."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def moved(inner: Region, outer: Region) -> Region:
    """Returns a region in coordinates relative to the start of another."""
    return tuple(
        (start - origin, stop - origin)
        for (start, stop), (origin, _) in zip(inner, outer, strict=True)
    )


def within(inner: Region, outer: Region) -> tuple[slice, ...]:
    """Returns the slices that select a region from an array that holds another region."""
    return tuple(slice(*interval) for interval in moved(inner, outer))


def cut(region: Region, others: Iterable[Region]) -> list[Region]:
    """Cuts a region into cells that lie wholly inside or wholly outside each other region."""
    others = list(others)
    intervals = []
    for axis, (start, stop) in enumerate(region):
        edges = {edge for other in others for edge in other[axis] if start < edge < stop}
        marks = [start, *sorted(edges), stop]
        intervals.append(list(itertools.pairwise(marks)))
    return [tuple(cell) for cell in itertools.product(*intervals)]


def device_regions(leaf: AbstractArray) -> Mapping[jax.Device, Region]:
    """Returns the region of a leaf that each device holds.

    Args:
      leaf: the leaf; without a sharding it lies on the first device.
    """
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    indices = sharding.devices_indices_map(tuple(leaf.shape))
    return {
        device: tuple(
            axis.indices(length)[:2] for axis, length in zip(index, leaf.shape, strict=True)
        )
        for device, index in indices.items()
    }


def mesh_regions(params: Params) -> DeviceRegions:
    """Returns the regions of a pytree on one mesh, in the order of the mesh's devices.

    Args:
      params: abstract params with `NamedSharding`s; the mesh may be an abstract one.
    """
    by_leaf = [_leaf_regions(leaf) for leaf in jax.tree.leaves(params)]
    return tuple(zip(*by_leaf, strict=True))


def _leaf_regions(leaf: AbstractArray) -> list[Region]:
    sharding = leaf.sharding
    assert isinstance(sharding, NamedSharding), f"{sharding} is not on a mesh"
    sizes = dict(sharding.mesh.shape)
    regions = []
    for coordinates in itertools.product(*(range(size) for size in sizes.values())):
        at = dict(zip(sizes, coordinates, strict=True))
        cuts = itertools.zip_longest(leaf.shape, sharding.spec)
        regions.append(tuple(_mesh_interval(length, axes, sizes, at) for length, axes in cuts))
    return regions


def _mesh_interval(
    length: int, axes: str | tuple[str, ...] | None, sizes: Mapping[str, int], at: Mapping[str, int]
) -> tuple[int, int]:
    """Returns the part of an axis at a mesh coordinate; the first mesh axis varies slowest."""
    part, parts = 0, 1
    for axis in (axes,) if isinstance(axes, str) else axes or ():
        part, parts = part * sizes[axis] + at[axis], parts * sizes[axis]
    share = length // parts
    return part * share, (part + 1) * share
