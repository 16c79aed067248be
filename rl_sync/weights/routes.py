"""Plan of a collective transfer: pieces of parameters, routes between devices, buckets.

It is a pure plan: boxes of indices and numbers of devices, no arrays. Between two devices, pieces
are sent in buckets of bounded size. In a *wave* each device sends to at most one device and
receives from at most one. The buckets of a wave are sent at the same time, one from each sender,
until its longest route is done. Large pieces are sent as they are, so that they need not be copied
into a bucket and out of it; small ones are packed into words.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

WORD_BYTES = 4

_LEAST_WORDS = 2  # The largest elements have eight bytes.
_GAP_SHARE = 8
_SMALL_BYTES = 256 * 2**10
_SMALL_SHARE = 8

Box = tuple[tuple[int, int], ...]
"""The begin and the end of indices along each axis."""


class Placed(NamedTuple):
    """A parameter on both sides.

    Attributes:
      itemsize: bytes of an element.
      sources, targets: the box of it that each device holds, or will hold.
    """

    itemsize: int
    sources: tuple[Box, ...]
    targets: tuple[Box, ...]


class Piece(NamedTuple):
    """A box of a parameter, by the parameter's number."""

    leaf: int
    box: Box


class Bucket(NamedTuple):
    """Pieces that one device sends to another at once.

    Attributes:
      single: pieces that are arrays of their own. In one turn of a wave they have the same shapes
        on all routes.
      packed: pieces that are packed into words, one after the other; each begins at a whole word.
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


def plan_transfer(leaves: Sequence[Placed], bucket_bytes: int) -> tuple[Wave, ...]:
    """Plans the transfer of every parameter to its targets.

    If several sources hold the same part, each of them sends it to an equal share of the targets.

    Args:
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
    for number, leaf in enumerate(leaves):
        for source, target, box in _deliveries(leaf):
            wanted.setdefault((source, target), []).append(Piece(number, box))
    sizes = [leaf.itemsize for leaf in leaves]
    routes = [Route(*pair, _fill(pieces, sizes, words)) for pair, pieces in wanted.items()]
    devices = max((max(len(leaf.sources), len(leaf.targets)) for leaf in leaves), default=1)
    return tuple(_aligned(wave, sizes) for wave in _waves(routes, devices))


def word_count(box: Box, itemsize: int) -> int:
    """Returns the number of words for the elements of a box; the last word may be padded."""
    return math.ceil(_elements(box) * itemsize / WORD_BYTES)


def _elements(box: Box) -> int:
    return math.prod(high - low for low, high in box)


def _common(one: Box, other: Box) -> Box:
    return tuple(
        (max(a, c), min(b, d)) if max(a, c) < min(b, d) else (0, 0)
        for (a, b), (c, d) in zip(one, other, strict=True)
    )


def _deliveries(leaf: Placed) -> list[tuple[int, int, Box]]:
    """Returns (source, target, box) for each target's elements, each element once."""
    holders: dict[Box, list[int]] = {}
    for source, box in enumerate(leaf.sources):
        holders.setdefault(box, []).append(source)
    deliveries = []
    for held, sources in holders.items():
        common = [(target, _common(held, box)) for target, box in enumerate(leaf.targets)]
        wanting = [(target, box) for target, box in common if _elements(box)]
        for rank, (target, box) in enumerate(wanting):
            deliveries.append((sources[rank * len(sources) // len(wanting)], target, box))
    return deliveries


def _fill(pieces: Sequence[Piece], sizes: Sequence[int], words: int) -> tuple[Bucket, ...]:
    """Puts pieces, in their order, into buckets; cuts those that are larger than a bucket."""
    buckets: list[tuple[Piece, ...]] = []
    bucket: list[Piece] = []
    free, left = words, deque(pieces)
    while left:
        piece = left.popleft()
        itemsize = sizes[piece.leaf]
        if free < word_count(piece.box, itemsize) <= words:
            taken, rest = None, [piece.box]
        else:
            taken, rest = _cut(piece.box, itemsize, free, words)
        left.extendleft(Piece(piece.leaf, box) for box in reversed(rest))
        if taken is None:
            buckets.append(tuple(bucket))
            bucket, free = [], words
        else:
            bucket.append(Piece(piece.leaf, taken))
            free -= word_count(taken, itemsize)
    small = min(_SMALL_BYTES, words * WORD_BYTES // _SMALL_SHARE)
    return tuple(_sorted(bucket, sizes, small) for bucket in [*buckets, tuple(bucket)] if bucket)


def _sorted(pieces: Sequence[Piece], sizes: Sequence[int], small_bytes: int) -> Bucket:
    """Makes a bucket whose small pieces are packed."""
    nbytes = [_elements(piece.box) * sizes[piece.leaf] for piece in pieces]
    pairs = list(zip(pieces, nbytes, strict=True))
    return Bucket(
        tuple(piece for piece, size in pairs if size > small_bytes),
        tuple(piece for piece, size in pairs if size <= small_bytes),
    )


def _cut(box: Box, itemsize: int, free: int, words: int) -> tuple[Box | None, list[Box]]:
    """Cuts a box into the part that still fits and the rest, in row-major order.

    It cuts along the first axis that allows it, so that there are few parts. If the bucket is
    nearly full, nothing is taken: the bucket is then better sent as it is.
    """
    most, rest, inner = free * WORD_BYTES // itemsize, deque[Box](), box
    for axis, (low, high) in enumerate(box):
        if _elements(inner) <= most:
            break
        row = _elements(inner) // (high - low)
        rows = most // row
        if not rows and free < words and row * itemsize <= words * WORD_BYTES // _GAP_SHARE:
            return None, [box]
        end = low + max(rows, 1)
        if end < high:
            rest.appendleft((*inner[:axis], (end, high), *inner[axis + 1 :]))
        inner = (*inner[:axis], (low, end), *inner[axis + 1 :])
        if rows:
            break
    return (inner, list(rest)) if _elements(inner) <= most else (None, [box])


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
    return Wave(aligned, tuple(max(_words(b, sizes) for b in turn) for turn in turns))


def _words(bucket: Bucket, sizes: Sequence[int]) -> int:
    return sum(word_count(piece.box, sizes[piece.leaf]) for piece in bucket.packed)


def _kinds(bucket: Bucket) -> list[tuple[int, tuple[int, ...]]]:
    return [(leaf, tuple(high - low for low, high in box)) for leaf, box in bucket.single]


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
