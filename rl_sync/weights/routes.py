"""Plan of a collective transfer: buckets of pieces, and routes between devices.

Between two devices, pieces are sent in buckets of bounded size. In a *wave* each device sends to at
most one device and receives from at most one. The buckets of a wave are sent at the same time, one
from each sender, until its longest route is done. Large pieces are sent as they are, so that they
need not be copied into a bucket and out of it; small ones are packed into words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rl_sync.weights.pieces import WORD_BYTES, Piece, shares, word_count
from rl_sync.weights.regions import DeviceRegions, Region, shape_of, size_of

_LEAST_WORDS = 2  # The largest elements have eight bytes.
_GAP_SHARE = 8
_SMALL_BYTES = 256 * 2**10
_SMALL_SHARE = 8


class Bucket(NamedTuple):
    """Pieces that one device sends to another at once.

    Attributes:
      single: pieces that are arrays of their own. In one turn of a wave they have the same shapes
        on all routes.
      packed: pieces that are packed into words, one after the other.
    """

    single: tuple[Piece, ...]
    packed: tuple[Piece, ...]


class Route(NamedTuple):
    """Buckets that one device sends to another, turn by turn."""

    source: int
    target: int
    buckets: tuple[Bucket, ...]


class Wave(NamedTuple):
    """Routes that share no sender and no receiver.

    Attributes:
      routes: the routes; the longest comes first.
      words: for each turn the number of words that are sent besides the arrays.
    """

    routes: tuple[Route, ...]
    words: tuple[int, ...]


def plan_transfer(
    itemsizes: Sequence[int], sources: DeviceRegions, targets: DeviceRegions, bucket_bytes: int
) -> tuple[Wave, ...]:
    """Plans the transfer of every leaf to its targets.

    If several sources hold the same part, each of them sends it to an equal share of the targets.

    Args:
      itemsizes: the bytes of an element of each leaf.
      sources, targets: the regions that each device holds, or will hold.
      bucket_bytes: the largest size of a bucket.

    Raises:
      ValueError: `bucket_bytes` is too little for the largest elements.
    """
    words = bucket_bytes // WORD_BYTES
    if words < _LEAST_WORDS:
        raise ValueError(
            f"bucket_bytes={bucket_bytes} must be at least {_LEAST_WORDS * WORD_BYTES}."
        )
    wanted: dict[tuple[int, int], list[Piece]] = {}
    for leaf in range(len(itemsizes)):
        for source, target, region in _deliveries(
            [held[leaf] for held in sources], [held[leaf] for held in targets]
        ):
            wanted.setdefault((source, target), []).append(Piece(leaf, region))
    routes = [Route(*pair, _fill(pieces, itemsizes, words)) for pair, pieces in wanted.items()]
    devices = max(len(sources), len(targets))
    return tuple(_aligned(wave, itemsizes) for wave in _waves(routes, devices))


def _deliveries(
    sources: Sequence[Region], targets: Sequence[Region]
) -> Iterator[tuple[int, int, Region]]:
    """Yields (source, target, region) for each target's elements of a leaf, each element once."""
    for holders, cells in shares(sources, targets):
        wanting = sorted((target, cell) for cell, readers in cells for target in readers)
        for rank, (target, region) in enumerate(wanting):
            yield holders[rank * len(holders) // len(wanting)], target, region


def _fill(pieces: Sequence[Piece], sizes: Sequence[int], words: int) -> tuple[Bucket, ...]:
    """Puts pieces, in their order, into buckets; cuts those that are larger than a bucket."""
    buckets: list[tuple[Piece, ...]] = []
    bucket: list[Piece] = []
    free, left = words, deque(pieces)
    while left:
        piece = left.popleft()
        itemsize = sizes[piece.leaf]
        if free < word_count([piece], sizes) <= words:
            taken, rest = None, [piece.region]
        else:
            taken, rest = _cut(piece.region, itemsize, free, words)
        left.extendleft(Piece(piece.leaf, region) for region in reversed(rest))
        if taken is None:
            buckets.append(tuple(bucket))
            bucket, free = [], words
        else:
            bucket.append(Piece(piece.leaf, taken))
            free -= word_count(bucket[-1:], sizes)
    small = min(_SMALL_BYTES, words * WORD_BYTES // _SMALL_SHARE)
    return tuple(_sorted(bucket, sizes, small) for bucket in [*buckets, tuple(bucket)] if bucket)


def _sorted(pieces: Sequence[Piece], sizes: Sequence[int], small_bytes: int) -> Bucket:
    """Makes a bucket whose small pieces are packed."""
    nbytes = [size_of(piece.region) * sizes[piece.leaf] for piece in pieces]
    pairs = list(zip(pieces, nbytes, strict=True))
    return Bucket(
        tuple(piece for piece, size in pairs if size > small_bytes),
        tuple(piece for piece, size in pairs if size <= small_bytes),
    )


def _cut(
    region: Region, itemsize: int, free: int, words: int
) -> tuple[Region | None, list[Region]]:
    """Cuts a region into the part that still fits and the rest, in row-major order.

    It cuts along the first axis that allows it, so that there are few parts. If the bucket is
    nearly full, nothing is taken: the bucket is then better sent as it is.
    """
    most, rest, inner = free * WORD_BYTES // itemsize, deque[Region](), region
    for axis, (low, high) in enumerate(region):
        if size_of(inner) <= most:
            break
        row = size_of(inner) // (high - low)
        rows = most // row
        if not rows and free < words and row * itemsize <= words * WORD_BYTES // _GAP_SHARE:
            return None, [region]
        end = low + max(rows, 1)
        if end < high:
            rest.appendleft((*inner[:axis], (end, high), *inner[axis + 1 :]))
        inner = (*inner[:axis], (low, end), *inner[axis + 1 :])
        if rows:
            break
    return (inner, list(rest)) if size_of(inner) <= most else (None, [region])


def _aligned(routes: Sequence[Route], sizes: Sequence[int]) -> Wave:
    """Makes a wave, longest route first, that sends arrays of equal shapes at each turn."""
    turns: list[list[Bucket]] = []
    for turn, first in enumerate(routes[0].buckets):
        buckets = [route.buckets[turn] for route in routes if turn < len(route.buckets)]
        alike = all(_kinds(bucket) == _kinds(first) for bucket in buckets)
        turns.append(buckets if alike else [_packed(bucket) for bucket in buckets])
    aligned = tuple(
        route._replace(buckets=tuple(turn[rank] for turn in turns[: len(route.buckets)]))
        for rank, route in enumerate(routes)
    )
    return Wave(aligned, tuple(max(word_count(b.packed, sizes) for b in turn) for turn in turns))


def _kinds(bucket: Bucket) -> list[tuple[int, tuple[int, ...]]]:
    return [(leaf, shape_of(region)) for leaf, region in bucket.single]


def _packed(bucket: Bucket) -> Bucket:
    return Bucket((), bucket.single + bucket.packed)


def _waves(routes: Sequence[Route], devices: int) -> list[list[Route]]:
    """Puts each route into the first wave that has neither its sender nor its receiver.

    Long routes come first, so that the routes of a wave have similar lengths. Among equals, the
    distance around the ring of devices decides. This gives the fewest waves if every device sends
    to every other.
    """
    ordered = sorted(
        routes,
        key=lambda r: (-len(r.buckets), (r.target - r.source) % devices, r.source, r.target),
    )
    waves: list[list[Route]] = []
    for route in ordered:
        fitting = (
            wave
            for wave in waves
            if all(route.source != r.source and route.target != r.target for r in wave)
        )
        wave = next(fitting, None)
        if wave is None:
            waves.append(wave := [])
        wave.append(route)
    return waves
