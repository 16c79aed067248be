"""Pieces of parameters: what each device holds, and which others need of it.

It is a pure plan: regions and numbers of leaves and devices, no arrays. Small pieces are packed
into 32-bit words, one after the other; each begins at a whole word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rl_sync.weights.regions import Region, cut, overlap, size_of

WORD_BYTES = 4


class Piece(NamedTuple):
    """A region of one leaf; leaves are numbered in flattening order."""

    leaf: int
    region: Region


class Share(NamedTuple):
    """A region of a leaf that some devices hold, in cells.

    Attributes:
      holders: the numbers of the devices that hold it.
      cells: the cells, each with the numbers of its readers. A reader needs a cell whole or not at
        all. Empty cells are left out.
    """

    holders: tuple[int, ...]
    cells: tuple[tuple[Region, tuple[int, ...]], ...]


def shares(sources: Iterable[Region], targets: Sequence[Region]) -> Iterator[Share]:
    """Cuts a leaf into shares, which hold each of its elements once.

    Args:
      sources, targets: the region that each device holds, or will hold.
    """
    holders: dict[Region, list[int]] = {}
    for source, region in enumerate(sources):
        holders.setdefault(region, []).append(source)
    for region, devices in holders.items():
        needed: dict[Region, list[int]] = {}
        for target, other in enumerate(targets):
            if (shared := overlap(region, other)) is not None:
                needed.setdefault(shared, []).append(target)
        cells = [cell for cell in cut(region, needed) if size_of(cell)]
        apart = needed.keys() <= set(cells)  # On a grid of devices; it saves comparing all pairs.
        yield Share(
            tuple(devices),
            tuple(
                (cell, tuple(needed.get(cell, ()) if apart else _readers(cell, needed)))
                for cell in cells
            ),
        )


def _readers(cell: Region, needed: dict[Region, list[int]]) -> list[int]:
    found = [needed[region] for region in needed if overlap(region, cell) is not None]
    return sorted(target for targets in found for target in targets)


def word_count(pieces: Iterable[Piece], itemsizes: Sequence[int]) -> int:
    """Returns the number of words of packed pieces; the last word of each may be padded.

    Args:
      itemsizes: the bytes of an element of each leaf.
    """
    return sum(math.ceil(size_of(region) * itemsizes[leaf] / WORD_BYTES) for leaf, region in pieces)
