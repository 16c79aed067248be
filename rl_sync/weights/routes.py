"""Plan of a collective transfer: which device sends what to which device, and in what order.

Leaves whose cells take the same routes form a *bundle*. In a *wave* of a bundle, each device sends
to at most one device and receives from at most one. A *turn* of a bundle sends some of its leaves
along every wave, as many as fit into a third of a bucket; a leaf that does not fit is cut into
equal boxes. So all devices send arrays of the same shapes in a turn, as collectives require.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.weights.cells import DeviceRegions, Region, cells, shape_of

SHARES = 3
"""Number of shares of a bucket: data that a device sends, data in flight, and data it receives."""

_LONG = 64
_TILE = 8

Route = tuple[int, int]
"""Numbers of the sending and of the receiving device."""


class CellBox(NamedTuple):
    """An array that is sent along every route of a bundle.

    Attributes:
      leaf: number of the leaf that it is a part of.
      shape: shape of the array.
      regions: region of the leaf that it covers, for each route of the bundle.
    """

    leaf: int
    shape: tuple[int, ...]
    regions: tuple[Region, ...]


class Bundle(NamedTuple):
    """Leaves that take the same routes.

    Attributes:
      routes: routes, one for each cell of a leaf.
      waves: groups of route numbers; routes of a wave share no sender and no receiver.
      turns: groups of boxes that are sent together.
    """

    routes: tuple[Route, ...]
    waves: tuple[tuple[int, ...], ...]
    turns: tuple[tuple[CellBox, ...], ...]


class LinkPlan(NamedTuple):
    """Plan of a transfer.

    Attributes:
      bundles: bundles, sent one after the other.
      nbytes: maximum bytes that a device sends at once.
      programs: number of programs that send them.
    """

    bundles: tuple[Bundle, ...]
    nbytes: int
    programs: int

    @property
    def exchanges(self) -> int:
        """Number of times that devices send and receive."""
        return sum(len(bundle.waves) * len(bundle.turns) for bundle in self.bundles)


def plan_transfer(
    dtypes: Sequence[np.dtype], sources: DeviceRegions, targets: DeviceRegions, bucket_bytes: int
) -> LinkPlan:
    """Plans the transfer of every leaf to its targets.

    Args:
      dtypes: dtype of each leaf.
      sources: regions that each device holds.
      targets: regions that each device of the other side will hold.
      bucket_bytes: maximum bytes that a device sends, receives and has in flight at once.

    Raises:
      ValueError: `bucket_bytes` is too small for one element.
    """
    most = bucket_bytes // SHARES
    if most < max((dtype.itemsize for dtype in dtypes), default=1):
        raise ValueError(
            f"bucket_bytes={bucket_bytes} is too small for {SHARES} elements: raise it."
        )

    def nbytes(box: CellBox) -> int:
        return math.prod(box.shape) * dtypes[box.leaf].itemsize

    devices = max(len(sources), len(targets))
    bundles = []
    for routes, boxes in _boxes_by_routes(dtypes, sources, targets, most).items():
        sizes = [nbytes(box) for box in boxes]
        turns = _filled(boxes, sizes, most)
        even = _filled(boxes, sizes, math.ceil(sum(sizes) / len(turns)))
        # Turns of equal sizes often have equal shapes, and then share a program.
        turns = even if len(even) == len(turns) else turns
        bundles.append(Bundle(routes, _waves(routes, devices), tuple(map(tuple, turns))))
    every = [turn for bundle in bundles for turn in bundle.turns]
    programs = {
        (bundle.waves, tuple((box.shape, dtypes[box.leaf]) for box in turn))
        for bundle in bundles
        for turn in bundle.turns
    }
    most_sent = max((sum(map(nbytes, turn)) for turn in every), default=0)
    return LinkPlan(tuple(bundles), most_sent, len(programs))


def _boxes_by_routes(
    dtypes: Sequence[np.dtype], sources: DeviceRegions, targets: DeviceRegions, most: int
) -> dict[tuple[Route, ...], list[CellBox]]:
    """Returns boxes of at most `most` bytes that cover all leaves, by the routes that they take."""
    alike: dict[tuple[Route, ...], list[CellBox]] = {}
    for leaf, dtype in enumerate(dtypes):
        sent: dict[tuple[int, ...], list[tuple[Route, Region]]] = {}
        for route, region in _deliveries(
            [held[leaf] for held in sources], [held[leaf] for held in targets]
        ):
            sent.setdefault(shape_of(region), []).append((route, region))
        for shape, deliveries in sent.items():
            routes, regions = zip(*sorted(deliveries), strict=True)
            box = CellBox(leaf, shape, regions)
            alike.setdefault(routes, []).extend(_cut(box, most // dtype.itemsize))
    return alike


def _deliveries(
    sources: Sequence[Region], targets: Sequence[Region]
) -> Iterator[tuple[Route, Region]]:
    """Yields the route and region of each delivery of a leaf; every target gets each element once.

    If several sources hold the same part, each of them serves an equal share of the targets.
    """
    for holders, shard in itertools.groupby(cells(sources, targets), lambda cell: cell.holders):
        wanted = sorted((target, cell.region) for cell in shard for target in cell.readers)
        for rank, (target, region) in enumerate(wanted):
            yield (holders[rank * len(holders) // len(wanted)], target), region


def _cut(box: CellBox, most: int) -> list[CellBox]:
    """Cuts a box into equal boxes of at most `most` elements; the last ones may overlap."""
    parts = math.ceil(math.prod(box.shape) / most)
    if parts == 1:
        return [box]
    longest = max(range(len(box.shape)), key=lambda axis: box.shape[axis])
    axis = next((axis for axis, length in enumerate(box.shape) if length >= parts), longest)
    length = box.shape[axis]
    step = max(length // parts, 1)
    if step >= _LONG:  # TPUs cut at multiples of their tiles without moving elements.
        step -= step % _TILE
    boxes = []
    for first in range(0, length, step):
        start = min(first, length - step)
        regions = tuple(
            (*region[:axis], (low + start, low + start + step), *region[axis + 1 :])
            for region in box.regions
            for low in [region[axis][0]]
        )
        shape = (*box.shape[:axis], step, *box.shape[axis + 1 :])
        boxes += _cut(CellBox(box.leaf, shape, regions), most)
    return boxes


def _filled(boxes: Sequence[CellBox], sizes: Sequence[int], most: int) -> list[list[CellBox]]:
    """Fills turns with boxes, up to `most` bytes for each turn, or a single larger box."""
    turns: list[list[CellBox]] = []
    filled = most
    for box, size in zip(boxes, sizes, strict=True):
        if not turns or filled + size > most:
            turns.append([])
            filled = 0
        turns[-1].append(box)
        filled += size
    return turns


def _waves(routes: Sequence[Route], devices: int) -> tuple[tuple[int, ...], ...]:
    """Puts each route into the first wave that uses neither its sender nor its receiver.

    Routes are ordered by their distance around the ring of devices. This gives the fewest waves if
    every device sends to every other.
    """
    waves: list[tuple[list[int], set[int], set[int]]] = []

    def around(number: int) -> tuple[int, Route]:
        source, target = routes[number]
        return (target - source) % devices, routes[number]

    for number in sorted(range(len(routes)), key=around):
        source, target = routes[number]
        for wave in waves:
            if source not in wave[1] and target not in wave[2]:
                break
        else:
            waves.append(wave := ([], set(), set()))
        wave[0].append(number)
        wave[1].add(source)
        wave[2].add(target)
    return tuple(tuple(wave[0]) for wave in waves)
