"""Plans of transfers, carried out on numpy arrays and inspected."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.weights.pieces import word_count
from rl_sync.weights.regions import shape_of
from rl_sync.weights.routes import Bucket, Wave, plan_transfer


class Placed(NamedTuple):
    """A leaf's bytes of an element, and its region on each device of both sides."""

    itemsize: int
    sources: tuple
    targets: tuple


def plan(leaves: list[Placed], bucket_bytes: int) -> tuple[Wave, ...]:
    itemsizes, sources, targets = zip(*leaves, strict=True)
    sides = (tuple(zip(*side, strict=True)) for side in (sources, targets))
    return plan_transfer(itemsizes, *sides, bucket_bytes)


def cut_evenly(shape: tuple[int, ...], cuts: tuple[int, ...], copies: int) -> tuple:
    """Returns the boxes of devices on a grid, each cut `copies` times; the copies are innermost."""
    boxes = []
    for place in np.ndindex(*cuts):
        widths = [size // cut for size, cut in zip(shape, cuts, strict=True)]
        box = tuple((i * w, (i + 1) * w) for i, w in zip(place, widths, strict=True))
        boxes += [box] * copies
    return tuple(boxes)


@st.composite
def placed(draw, sources: int, targets: int) -> Placed:
    """Makes a parameter, sharded along its axes on so many devices of each side."""
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.sampled_from([1, 2, 6, 12, 24])) for _ in range(rank))

    def side(devices: int) -> tuple:
        cuts = []
        left = devices
        for size in shape:
            divisors = [d for d in range(1, left + 1) if left % d == 0 and size % d == 0]
            cuts.append(draw(st.sampled_from(divisors)))
            left //= cuts[-1]
        return cut_evenly(shape, tuple(cuts), left)

    return Placed(draw(st.sampled_from([1, 2, 4, 8])), side(sources), side(targets))


@st.composite
def transfers(draw) -> list[Placed]:
    sides = (draw(st.sampled_from([1, 2, 3, 4, 6])), draw(st.sampled_from([1, 2, 3, 4, 6])))
    return draw(st.lists(placed(*sides), min_size=1, max_size=4))


def slices(box, origin) -> tuple:
    return (*(slice(a - o, b - o) for (a, b), (o, _) in zip(box, origin, strict=True)), ...)


def pieces_of(bucket: Bucket) -> tuple:
    return bucket.single + bucket.packed


def carry_out(waves: tuple[Wave, ...], leaves: list[Placed], bucket_bytes: int) -> None:
    """Checks that every target gets each of its elements once, with the right value."""
    wholes = []
    for leaf in leaves:
        shape = tuple(max(box[axis][1] for box in leaf.sources) for axis in range(_rank(leaf)))
        wholes.append(np.arange(math.prod(shape)).reshape(shape))
    held = [
        [whole[slices(box, [(0, 0)] * len(box))] for box in leaf.sources]
        for leaf, whole in zip(leaves, wholes, strict=True)
    ]
    got = [[np.full(shape_of(box), -1) for box in leaf.targets] for leaf in leaves]
    itemsizes = [leaf.itemsize for leaf in leaves]
    for wave in waves:
        routes = wave.routes
        assert len({route.source for route in routes}) == len(routes), "one sends twice at once"
        assert len({route.target for route in routes}) == len(routes), "one receives twice at once"
        for turn, words in enumerate(wave.words):
            buckets = [route.buckets[turn] for route in routes if turn < len(route.buckets)]
            kinds = {
                tuple((leaf, shape_of(box)) for leaf, box in bucket.single) for bucket in buckets
            }
            assert len(kinds) == 1, "arrays of a turn differ in their shapes"
            packed = [word_count(bucket.packed, itemsizes) for bucket in buckets]
            assert max(packed) == words
            for bucket in buckets:
                assert 0 < word_count(pieces_of(bucket), itemsizes) * 4 <= bucket_bytes
        for route in routes:
            for bucket in route.buckets:
                for number, box in pieces_of(bucket):
                    source, target = leaves[number].sources, leaves[number].targets
                    sent = held[number][route.source][slices(box, source[route.source])]
                    place = got[number][route.target][slices(box, target[route.target])]
                    assert sent.shape == place.shape == shape_of(box)
                    assert (place == -1).all(), "an element arrives twice"
                    place[...] = sent
    for leaf, whole, arrived in zip(leaves, wholes, got, strict=True):
        for box, part in zip(leaf.targets, arrived, strict=True):
            np.testing.assert_array_equal(part, whole[slices(box, [(0, 0)] * len(box))])


def _rank(leaf: Placed) -> int:
    return len(leaf.sources[0])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(transfers(), st.sampled_from([8, 20, 64, 1000, 10**6]))
def test_any_shards_become_any_other_shards_in_buckets_of_bounded_size(leaves, bucket_bytes):
    carry_out(plan(leaves, bucket_bytes), leaves, bucket_bytes)


def shards(size: int, devices: int, copies: int = 1) -> tuple:
    return cut_evenly((size,), (devices,), copies)


def test_equal_shards_go_straight_across_in_one_wave():
    (wave,) = plan([Placed(4, shards(80, 4), shards(80, 4))], 10**6)
    pairs = [(route.source, route.target) for route in wave.routes]
    assert pairs == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert wave.words == (20,)


def test_rows_become_columns_in_as_many_waves_as_there_are_devices():
    rows, columns = cut_evenly((8, 8), (4, 1), 1), cut_evenly((8, 8), (1, 4), 1)
    waves = plan([Placed(4, rows, columns)], 10**6)
    assert [len(wave.routes) for wave in waves] == [4, 4, 4, 4]


def test_those_that_hold_the_same_send_equal_shares():
    waves = plan([Placed(4, shards(80, 1, copies=2), shards(80, 1, copies=6))], 10**6)
    sent = [route.source for wave in waves for route in wave.routes]
    assert sorted(sent) == [0, 0, 0, 1, 1, 1]
    assert len(waves) == 3


def only_route(leaves: list[Placed], bucket_bytes: int) -> tuple[Bucket, ...]:
    """Returns the buckets of a transfer from one device to one."""
    (wave,) = plan(leaves, bucket_bytes)
    (route,) = wave.routes
    return route.buckets


def test_small_parameters_share_a_bucket_and_large_ones_are_cut():
    small = [Placed(4, shards(10, 1), shards(10, 1))] * 200
    assert [len(bucket.packed) for bucket in only_route(small, 4096)] == [102, 98]
    buckets = only_route([Placed(2, shards(5000, 1), shards(5000, 1))], 4096)
    boxes = [piece.region for bucket in buckets for piece in bucket.single]
    assert boxes == [((0, 2048),), ((2048, 4096),), ((4096, 5000),)]


def test_what_fits_into_a_bucket_is_neither_cut_nor_packed_unless_it_is_small():
    large, small = Placed(4, shards(600, 1), shards(600, 1)), Placed(4, shards(5, 1), shards(5, 1))
    buckets = only_route([large, small, large], 4096)
    assert [[piece.leaf for piece in bucket.single] for bucket in buckets] == [[0], [2]]
    assert [[piece.leaf for piece in bucket.packed] for bucket in buckets] == [[1], []]


def test_devices_that_send_other_shapes_at_a_turn_send_words():
    """Two senders with a third of the rows each, and one with the rest, cannot be cut alike."""
    uneven = Placed(4, (((0, 300),), ((300, 800),)), (((0, 300),), ((300, 800),)))
    even = Placed(4, shards(800, 2), shards(800, 2))
    (wave,) = plan([uneven, even], 10**6)
    assert wave.words == (900,)
    assert all(not bucket.single for route in wave.routes for bucket in route.buckets)
    (wave,) = plan([even, even], 10**5)
    assert [[p.leaf for p in route.buckets[0].single] for route in wave.routes] == [[], []]
    (wave,) = plan([even, even], 4000)
    assert [[p.leaf for p in route.buckets[0].single] for route in wave.routes] == [[0, 1], [0, 1]]


def test_a_bucket_is_filled_to_seven_eighths_whatever_the_rows():
    box = cut_evenly((40, 300), (1, 1), 1)
    buckets = only_route([Placed(4, box, box)], 4 * 1000)
    filled = [word_count(pieces_of(bucket), [4]) for bucket in buckets]
    assert min(filled[:-1]) >= 875
    assert sum(filled) == 12_000


def test_a_transfer_of_nothing_needs_no_wave():
    assert plan([Placed(4, (((0, 0),),), (((0, 0),),))], 4096) == ()


def test_a_bucket_too_small_for_an_element_is_refused():
    with pytest.raises(ValueError, match="bucket_bytes=7"):
        plan_transfer([], (), (), 7)
