"""Formats: the arrays that a device sends at a turn, the same at every turn of a transfer.

A program that moves arrays is compiled for their shapes. So a format has *slots* of fixed shapes.
Each large part of a leaf is cut into as many boxes of one shape as there are turns, and a slot
holds one of them; or, if there are more such parts than turns, a slot holds a whole part. Where a
part is not a multiple of its box, the last boxes overlap: some elements are sent twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from rl_sync.weights.pieces import WORD_BYTES
from rl_sync.weights.regions import Region

Shape = tuple[int, ...]

_TURN_SHARE = 64
_TRIED = 64
_GROWTH = 1.25
_LONG = 256
_TILE = 8


class Kind(NamedTuple):
    """Properties of a leaf that decide about programs.

    Attributes:
      itemsize: the bytes of an element.
      others: whatever else distinguishes leaves for a program.
    """

    itemsize: int
    others: Hashable


class Part(NamedTuple):
    """A part of a leaf that a route sends, wherever in the leaf it lies.

    Attributes:
      rank: its number among the route's parts of this leaf and shape.
    """

    leaf: int
    shape: Shape
    rank: int


class Group(NamedTuple):
    """Parts that are sent in the same slots, one turn after the other.

    Attributes:
      parts: the parts, which are alike.
      box: the shape of a slot. It is smaller than the part if there is only one part.
      slots: the number of slots.
    """

    parts: tuple[Part, ...]
    box: Shape
    slots: int

    def at(self, turn: int) -> Iterator[tuple[Part, Region]]:
        """Yields for each slot the part, and the region of the part, to send at a turn.

        After the last turn that is needed the last ones are sent again.
        """
        first = min(turn * self.slots, len(self.parts) - self.slots)
        for part in self.parts[first : first + self.slots]:
            yield part, _region(part.shape, self.box, turn)


class Format(NamedTuple):
    """Arrays that a device sends at each turn.

    Attributes:
      groups: the groups of parts; their slots follow each other.
      words: the number of words besides.
      turns: the number of turns until everything is sent.
      nbytes: the bytes that are sent at a turn.
    """

    groups: tuple[Group, ...]
    words: int
    turns: int
    nbytes: int

    @property
    def slots(self) -> tuple[tuple[int, Shape], ...]:
        """For each slot a leaf with its dtype, and its shape."""
        return tuple(
            (group.parts[0].leaf, group.box) for group in self.groups for _ in range(group.slots)
        )

    def at(self, turn: int) -> Iterator[tuple[Part, Region]]:
        """Yields for each slot the part, and the region of the part, to send at a turn."""
        for group in self.groups:
            yield from group.at(turn)


def make_format(
    parts: Sequence[Part], kinds: Sequence[Kind], words: int, bucket_bytes: int
) -> Format:
    """Makes the format that sends some parts with few bytes in few turns.

    A turn costs as much as a small share of the largest bucket.

    Args:
      kinds: the kind of each leaf, by the leaf's number.
      words: the number of words that are sent besides.
      bucket_bytes: the largest size of all slots and words together.

    Raises:
      ValueError: `bucket_bytes` is too little.
    """
    if not parts:
        return Format((), words, 1, words * WORD_BYTES)
    space = bucket_bytes - words * WORD_BYTES
    alike: dict[Hashable, list[Part]] = {}
    for part in parts:
        alike.setdefault((kinds[part.leaf], part.shape), []).append(part)
    sizes = [_bytes(part.shape, kinds[part.leaf]) for part in parts]
    first = math.ceil(sum(sizes) / max(space, 1))
    best: tuple[int, Format] | None = None
    for turns in _numbers(first, max(math.prod(part.shape) for part in parts)):
        if best is not None and turns > first + _TRIED:
            break
        groups = tuple(group for like in alike.values() for group in _groups(like, turns))
        filled = sum(
            _bytes(group.box, kinds[group.parts[0].leaf]) * group.slots for group in groups
        )
        cost = turns * (filled + bucket_bytes // _TURN_SHARE)
        if filled <= space and (best is None or cost < best[0]):
            best = cost, Format(groups, words, turns, filled + words * WORD_BYTES)
    if best is None:
        raise ValueError(
            f"bucket_bytes={bucket_bytes} is too little for an element of each of {len(parts)}"
            " parts of parameters: give more."
        )
    return best[1]


def _numbers(first: int, last: int) -> Iterator[int]:
    """Yields numbers from the first on; distant ones are left out."""
    yield from range(first, first + _TRIED + 1)
    number = first + _TRIED + 1
    while number < last:
        yield number
        number = math.ceil(number * _GROWTH)
    yield max(number, last)


def _groups(parts: Sequence[Part], turns: int) -> list[Group]:
    """Groups parts that are alike so that they are sent within some turns."""
    if len(parts) >= turns:
        return [Group(tuple(parts), parts[0].shape, math.ceil(len(parts) / turns))]
    box = _box(parts[0].shape, turns)
    return [Group((part,), box, 1) for part in parts]


def _box(shape: Shape, turns: int) -> Shape:
    """Returns the smallest box of which so many cover a shape; the last axis is cut last."""
    rank = len(shape)
    starts = range(max(rank - 1, min(rank, 1)))
    boxes = [_box_from(shape, turns, [*range(start, rank), *range(start)]) for start in starts]
    return min(boxes, key=math.prod, default=())


def _box_from(shape: Shape, turns: int, axes: Sequence[int]) -> Shape:
    box, left = list(shape), turns
    for axis in axes:
        step = math.ceil(shape[axis] / left)
        if step >= _LONG:  # TPUs cut at multiples of their tiles without moving elements.
            step = min(math.ceil(step / _TILE) * _TILE, shape[axis])
        box[axis] = step
        left //= math.ceil(shape[axis] / step)
    return tuple(box)


def _region(shape: Shape, box: Shape, turn: int) -> Region:
    counts = [math.ceil(length / step) for length, step in zip(shape, box, strict=True)]
    index = min(turn, math.prod(counts) - 1)
    starts = []
    for count, length, step in zip(counts[::-1], shape[::-1], box[::-1], strict=True):
        index, at = divmod(index, count)
        starts.append(min(at * step, length - step))
    return tuple((start, start + step) for start, step in zip(starts[::-1], box, strict=True))


def _bytes(shape: Shape, kind: Kind) -> int:
    return math.prod(shape) * kind.itemsize


def union(patterns: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
    """Returns the parts of all patterns, each once."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(patterns)))
