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
from rl_sync.weights.routes import Bucket, Transfer, plan_transfer


class Placed(NamedTuple):
    """A leaf's bytes of an element, and its region on each device of both sides."""

    itemsize: int
    sources: tuple
    targets: tuple


def plan(leaves: list[Placed], bucket_bytes: int) -> Transfer:
    itemsizes, sources, targets = zip(*leaves, strict=True)
    sides = (tuple(zip(*side, strict=True)) for side in (sources, targets))
    return plan_transfer([np.dtype(f"u{size}") for size in itemsizes], *sides, bucket_bytes)


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
    return (*(piece for piece in bucket.single if piece), *bucket.packed)


def carry_out(transfer: Transfer, leaves: list[Placed], bucket_bytes: int) -> None:
    """Checks that every target gets each of its elements, with the right value."""
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
    assert {wave.format for wave in transfer.waves} == set(range(len(transfer.formats)))
    for wave in transfer.waves:
        routes, form = wave.routes, transfer.formats[wave.format]
        assert len({route.source for route in routes}) == len(routes), "one sends twice at once"
        assert len({route.target for route in routes}) == len(routes), "one receives twice at once"
        filled = [math.prod(shape) * itemsizes[leaf] for leaf, shape in form.slots]
        assert sum(filled) + form.words * 4 == form.nbytes <= bucket_bytes
        for route in routes:
            assert len(route.buckets) == form.turns
            for bucket in route.buckets:
                assert word_count(bucket.packed, itemsizes) <= form.words
                for piece, (leaf, shape) in zip(bucket.single, form.slots, strict=True):
                    if piece:
                        assert shape_of(piece.region) == shape
                        assert itemsizes[piece.leaf] == itemsizes[leaf]
                for number, box in pieces_of(bucket):
                    source, target = leaves[number].sources, leaves[number].targets
                    sent = held[number][route.source][slices(box, source[route.source])]
                    place = got[number][route.target][slices(box, target[route.target])]
                    assert sent.shape == place.shape == shape_of(box)
                    place[...] = sent
    for leaf, whole, arrived in zip(leaves, wholes, got, strict=True):
        for box, part in zip(leaf.targets, arrived, strict=True):
            np.testing.assert_array_equal(part, whole[slices(box, [(0, 0)] * len(box))])


def _rank(leaf: Placed) -> int:
    return len(leaf.sources[0])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(transfers(), st.sampled_from([2000, 5000, 10**6]))
def test_any_shards_become_any_other_shards_in_buckets_of_bounded_size(leaves, bucket_bytes):
    carry_out(plan(leaves, bucket_bytes), leaves, bucket_bytes)


def shards(size: int, devices: int, copies: int = 1) -> tuple:
    return cut_evenly((size,), (devices,), copies)


def test_equal_shards_go_straight_across_in_one_wave():
    (wave,) = plan([Placed(4, shards(80, 4), shards(80, 4))], 10**6).waves
    pairs = [(route.source, route.target) for route in wave.routes]
    assert pairs == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_rows_become_columns_in_as_many_waves_as_there_are_devices():
    rows, columns = cut_evenly((8, 8), (4, 1), 1), cut_evenly((8, 8), (1, 4), 1)
    waves = plan([Placed(4, rows, columns)], 10**6).waves
    assert [len(wave.routes) for wave in waves] == [4, 4, 4, 4]


def test_those_that_hold_the_same_send_equal_shares():
    waves = plan([Placed(4, shards(80, 1, copies=2), shards(80, 1, copies=6))], 10**6).waves
    sent = [route.source for wave in waves for route in wave.routes]
    assert sorted(sent) == [0, 0, 0, 1, 1, 1]
    assert len(waves) == 3


def test_small_parameters_are_words_and_large_ones_are_cut_into_equal_boxes():
    box = cut_evenly((67, 256), (1, 1), 1)
    leaves = [Placed(2, box, box), Placed(4, shards(10, 1), shards(10, 1))]
    (form,), (wave,) = plan(leaves, 16384)
    assert (form.turns, form.slots, form.words) == (4, ((0, (17, 256)),), 10)
    rows = [bucket.single[0].region[0] for bucket in wave.routes[0].buckets]
    assert rows == [(0, 17), (17, 34), (34, 51), (50, 67)]


def test_what_fits_into_a_bucket_is_neither_cut_nor_packed_unless_it_is_small():
    large, small = Placed(4, shards(600, 1), shards(600, 1)), Placed(4, shards(5, 1), shards(5, 1))
    (_,), (wave,) = plan([large, small, large], 4096)
    singles = [bucket.single for bucket in wave.routes[0].buckets]
    assert [[piece.leaf for piece in single] for single in singles] == [[0], [2]]
    assert [[piece.leaf for piece in b.packed] for b in wave.routes[0].buckets] == [[1], [1]]


def test_many_small_parameters_of_a_long_transfer_are_not_all_words():
    """Words are sent at every turn, so that they have a sixteenth of the bucket."""
    large, few = Placed(4, shards(4000, 1), shards(4000, 1)), shards(20, 1)
    (form,), _ = plan([large, *[Placed(4, few, few)] * 8], 4096)
    assert form.words == 0
    (form,), _ = plan([large, *[Placed(4, few, few)] * 3], 4096)
    assert (form.words, len(form.slots)) == (60, 1)


def test_routes_that_lack_a_part_go_with_those_that_have_it():
    """Only one of two receivers gets the second leaf."""
    both, one = shards(800, 2), (((0, 800),), ((800, 800),))
    leaves = [Placed(4, both, both), Placed(4, one, one)]
    (_,), (wave,) = transfer = plan(leaves, 10**4)
    assert [len(route.buckets) for route in wave.routes] == [1, 1]
    assert [piece is None for piece in wave.routes[1].buckets[0].single] == [False, True]
    carry_out(transfer, leaves, 10**4)


def test_routes_that_differ_share_four_formats():
    regions = tuple(((n * 400, n * 401 + 350),) for n in range(8))
    leaves = [Placed(4, regions, regions)]
    transfer = plan(leaves, 10**4)
    assert (len(transfer.formats), len(transfer.waves)) == (4, 4)
    carry_out(transfer, leaves, 10**4)


def test_a_transfer_of_nothing_needs_no_wave():
    assert plan([Placed(4, (((0, 0),),), (((0, 0),),))], 4096) == ((), ())


def test_buckets_too_small_for_an_element_of_each_leaf_are_refused():
    with pytest.raises(ValueError, match="bucket_bytes=7"):
        plan_transfer([], (), (), 7)
    with pytest.raises(ValueError, match=r"bucket_bytes=8 is too little .* each of 3 parts"):
        plan([Placed(4, shards(n, 1), shards(n, 1)) for n in (9, 10, 11)], 8)
