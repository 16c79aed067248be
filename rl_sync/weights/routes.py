"""Plan of a collective transfer: routes between devices, and what each sends at every turn.

In a *wave* each device sends to at most one device and receives from at most one. All routes of a
wave send arrays of the same shapes at each of its turns (`formats.py`), and so do most waves. Small
pieces are packed into words; large ones are cut into boxes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.weights.formats import Format, Kind, Part, make_format, union
from rl_sync.weights.pieces import WORD_BYTES, Piece, shares, word_count
from rl_sync.weights.regions import DeviceRegions, Region, placed, shape_of, size_of

_LEAST_WORDS = 2  # The largest elements have eight bytes.
_MOST_FORMATS = 4
_SMALL_BYTES = 256 * 2**10
_SMALL_SHARE = 8
_PACKED_SHARE = 16


class Bucket(NamedTuple):
    """Pieces that one device sends to another at a turn.

    Attributes:
      single: for each slot of the format the piece that is sent in it; None if there is none.
      packed: pieces that are packed into words, one after the other; the same at each turn.
    """

    single: tuple[Piece | None, ...]
    packed: tuple[Piece, ...]


class Route(NamedTuple):
    """Buckets that one device sends to another, turn by turn."""

    source: int
    target: int
    buckets: tuple[Bucket, ...]


class Wave(NamedTuple):
    """Routes that share no sender and no receiver.

    Attributes:
      format: the number of the format in which all of them send.
    """

    format: int
    routes: tuple[Route, ...]


class Transfer(NamedTuple):
    """Plan of a transfer: waves, one after the other.

    Attributes:
      formats: the formats of the waves.
    """

    formats: tuple[Format, ...]
    waves: tuple[Wave, ...]

    @property
    def turns(self) -> int:
        """The number of turns of all waves."""
        return sum(self.formats[wave.format].turns for wave in self.waves)


class _Pair(NamedTuple):
    """Pieces that one device sends to another: the large ones as parts, the small ones."""

    source: int
    target: int
    large: dict[Part, Region]
    packed: tuple[Piece, ...]


def plan_transfer(
    dtypes: Sequence[np.dtype], sources: DeviceRegions, targets: DeviceRegions, bucket_bytes: int
) -> Transfer:
    """Plans the transfer of every leaf to its targets.

    If several sources hold the same part, each of them sends it to an equal share of the targets.

    Args:
      dtypes: the dtype of each leaf.
      sources, targets: the regions that each device holds, or will hold.
      bucket_bytes: the largest size of a bucket.

    Raises:
      ValueError: `bucket_bytes` is too little for an element of each leaf.
    """
    if bucket_bytes < _LEAST_WORDS * WORD_BYTES:
        raise ValueError(
            f"bucket_bytes={bucket_bytes} must be at least {_LEAST_WORDS * WORD_BYTES}."
        )
    wanted: dict[tuple[int, int], list[Piece]] = {}
    for leaf in range(len(dtypes)):
        for source, target, region in _deliveries(
            [held[leaf] for held in sources], [held[leaf] for held in targets]
        ):
            wanted.setdefault((source, target), []).append(Piece(leaf, region))
    itemsizes = [dtype.itemsize for dtype in dtypes]
    small = _small_bytes(wanted.values(), itemsizes, bucket_bytes)
    pairs = [_pair(*ends, pieces, itemsizes, small) for ends, pieces in wanted.items()]
    kinds = [
        Kind(
            dtype.itemsize, (dtype.name, *(shape_of(held[0][leaf]) for held in (sources, targets)))
        )
        for leaf, dtype in enumerate(dtypes)
        if pairs
    ]
    words = max((word_count(pair.packed, itemsizes) for pair in pairs), default=0)
    formats = [make_format(parts, kinds, words, bucket_bytes) for parts in _patterns(pairs, kinds)]
    waves = _waves(pairs, formats, devices=max(len(sources), len(targets)))
    used = sorted({number for number, _ in waves})
    return Transfer(
        tuple(formats[number] for number in used),
        tuple(
            Wave(used.index(number), tuple(_route(pair, formats[number]) for pair in together))
            for number, together in waves
        ),
    )


def _deliveries(
    sources: Sequence[Region], targets: Sequence[Region]
) -> Iterator[tuple[int, int, Region]]:
    """Yields (source, target, region) for each target's elements of a leaf, each element once."""
    for holders, cells in shares(sources, targets):
        wanting = sorted((target, cell) for cell, readers in cells for target in readers)
        for rank, (target, region) in enumerate(wanting):
            yield holders[rank * len(holders) // len(wanting)], target, region


def _small_bytes(
    wanted: Collection[Sequence[Piece]], itemsizes: Sequence[int], bucket_bytes: int
) -> int:
    """Returns the size up to which pieces are packed.

    Words are sent at each turn, so that they must be few unless one turn is enough.
    """
    most = min(_SMALL_BYTES, bucket_bytes // _SMALL_SHARE)
    sizes = [sorted(size_of(region) * itemsizes[leaf] for leaf, region in of) for of in wanted]
    if all(sum(of) + len(of) * WORD_BYTES <= bucket_bytes for of in sizes):
        return most
    for of in sizes:
        for size, upto in zip(of, itertools.accumulate(of), strict=True):
            if upto > bucket_bytes // _PACKED_SHARE:
                most = min(most, size - 1)
                break
    return most


def _pair(
    source: int, target: int, pieces: Sequence[Piece], itemsizes: Sequence[int], small: int
) -> _Pair:
    large: dict[Part, Region] = {}
    packed = []
    ranks = Counter[tuple[int, tuple[int, ...]]]()
    for piece in pieces:
        leaf, region = piece
        if not region or size_of(region) * itemsizes[leaf] <= small:
            packed.append(piece)
        else:
            like = leaf, shape_of(region)
            large[Part(*like, ranks[like])] = region
            ranks[like] += 1
    return _Pair(source, target, large, tuple(packed))


def _patterns(pairs: Sequence[_Pair], kinds: Sequence[Kind]) -> list[tuple[Part, ...]]:
    """Returns the sets of parts for which there are formats, the largest first.

    Of many, those with the fewest bytes are joined.
    """
    weights = Counter[tuple[Part, ...]]()
    for pair in pairs:
        weights[tuple(pair.large)] += 1 + sum(
            size_of(region) * kinds[part.leaf].itemsize for part, region in pair.large.items()
        )
    patterns = [parts for parts, _ in weights.most_common()]
    if len(patterns) > _MOST_FORMATS:
        last = _MOST_FORMATS - 1
        patterns = [*patterns[:last], union(patterns[last:])]
    return patterns


def _route(pair: _Pair, form: Format) -> Route:
    buckets = []
    for turn in range(form.turns):
        single = [
            Piece(part.leaf, placed(box, pair.large[part])) if part in pair.large else None
            for part, box in form.at(turn)
        ]
        buckets.append(Bucket(tuple(single), pair.packed))
    return Route(pair.source, pair.target, tuple(buckets))


def _waves(
    pairs: Sequence[_Pair], formats: Sequence[Format], devices: int
) -> list[tuple[int, list[_Pair]]]:
    """Puts each pair into the first wave that can take it; returns the waves with their formats.

    A wave can take a pair if it has neither its sender nor its receiver, and if its format has all
    of its parts. Formats of many bytes come first. Among pairs of one format, the distance around
    the ring of devices decides. This gives the fewest waves if every device sends to every other.
    """
    parts = [frozenset(part for group in form.groups for part in group.parts) for form in formats]
    ordered = []
    for pair in pairs:
        fitting = [number for number, of in enumerate(parts) if pair.large.keys() <= of]
        own = min(fitting, key=lambda number: len(parts[number]))
        around = (pair.target - pair.source) % devices
        ordered.append(((-formats[own].turns, own, around, pair.source, pair.target), pair))
    waves: list[tuple[int, list[_Pair]]] = []
    busy: list[tuple[set[int], set[int]]] = []
    for (_, own, *_), pair in sorted(ordered, key=lambda item: item[0]):
        for index, (sending, receiving) in enumerate(busy):
            number, taken = waves[index]
            free = pair.source not in sending and pair.target not in receiving
            if free and pair.large.keys() <= parts[number]:
                break
        else:
            waves.append((own, taken := []))
            busy.append((sending := set(), receiving := set()))
        taken.append(pair)
        sending.add(pair.source)
        receiving.add(pair.target)
    return waves
