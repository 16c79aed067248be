"""Plans of transfers, carried out on numpy arrays and inspected."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.weights.cells import shape_of
from rl_sync.weights.routes import LinkPlan, plan_transfer


class Placed(NamedTuple):
    """A leaf's bytes of an element, and its region on each device of both sides."""

    itemsize: int
    sources: tuple
    targets: tuple


def plan(leaves: list[Placed], bucket_bytes: int) -> LinkPlan:
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


def carry_out(transfer: LinkPlan, leaves: list[Placed], bucket_bytes: int) -> None:
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
    nbytes, programs = [0], set()
    for bundle in transfer.bundles:
        assert sorted(itertools.chain(*bundle.waves)) == list(range(len(bundle.routes)))
        for wave in bundle.waves:
            for ends in zip(*(bundle.routes[route] for route in wave), strict=True):
                assert len(set(ends)) == len(ends), "one sends or receives twice at once"
        for turn in bundle.turns:
            nbytes.append(sum(math.prod(box.shape) * leaves[box.leaf].itemsize for box in turn))
            programs.add((bundle.waves, tuple((b.shape, leaves[b.leaf].itemsize) for b in turn)))
            for leaf, shape, regions in turn:
                for (source, target), region in zip(bundle.routes, regions, strict=True):
                    sender, receiver = leaves[leaf].sources[source], leaves[leaf].targets[target]
                    sent = held[leaf][source][slices(region, sender)]
                    place = got[leaf][target][slices(region, receiver)]
                    assert sent.shape == place.shape == shape_of(region) == shape
                    place[...] = sent
    assert max(nbytes) == transfer.nbytes <= bucket_bytes // 3
    assert len(programs) == transfer.programs
    for leaf, whole, arrived in zip(leaves, wholes, got, strict=True):
        for box, part in zip(leaf.targets, arrived, strict=True):
            np.testing.assert_array_equal(part, whole[slices(box, [(0, 0)] * len(box))])


def _rank(leaf: Placed) -> int:
    return len(leaf.sources[0])


@pytest.mark.gate
@settings(max_examples=200, deadline=None)
@given(transfers(), st.sampled_from([2000, 5000, 10**6]))
def test_any_shards_become_any_other_shards_in_buckets_of_bounded_size(leaves, bucket_bytes):
    carry_out(plan(leaves, bucket_bytes), leaves, bucket_bytes)


def shards(size: int, devices: int, copies: int = 1) -> tuple:
    return cut_evenly((size,), (devices,), copies)


def routes_of(transfer: LinkPlan) -> list[list[tuple[int, int]]]:
    """Returns the routes of each wave of the only bundle."""
    (bundle,) = transfer.bundles
    return [[bundle.routes[route] for route in wave] for wave in bundle.waves]


def test_equal_shards_go_straight_across_in_one_wave():
    (wave,) = routes_of(plan([Placed(4, shards(80, 4), shards(80, 4))], 10**6))
    assert wave == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_rows_become_columns_in_as_many_waves_as_there_are_devices():
    rows, columns = cut_evenly((8, 8), (4, 1), 1), cut_evenly((8, 8), (1, 4), 1)
    waves = routes_of(plan([Placed(4, rows, columns)], 10**6))
    assert [len(wave) for wave in waves] == [4, 4, 4, 4]


def test_those_that_hold_the_same_send_equal_shares():
    waves = routes_of(plan([Placed(4, shards(80, 1, copies=2), shards(80, 1, copies=6))], 10**6))
    assert sorted(source for wave in waves for source, _ in wave) == [0, 0, 0, 1, 1, 1]
    assert len(waves) == 3


def test_what_does_not_fit_into_a_third_of_a_bucket_is_cut_into_equal_boxes():
    box = cut_evenly((67, 256), (1, 1), 1)
    (bundle,) = plan([Placed(2, box, box)], 3 * 8192).bundles
    rows = [turn[0].regions[0][0] for turn in bundle.turns]
    assert rows == [(0, 13), (13, 26), (26, 39), (39, 52), (52, 65), (54, 67)]


@pytest.mark.parametrize(
    ("shape", "cut"), [((2, 100, 64), (2, 20, 64)), ((1, 1, 4096), (1, 1, 512)), ((0,), (0,))]
)
def test_the_first_axis_that_is_long_enough_is_cut(shape, cut):
    box = cut_evenly(shape, (1,) * len(shape), 1)
    bundles = plan([Placed(1, box, box)], 1536 if shape[0] == 1 else 7680).bundles
    assert {box.shape for bundle in bundles for turn in bundle.turns for box in turn} <= {cut}


def test_leaves_that_go_the_same_ways_share_turns_of_about_equal_size():
    """Ten leaves of 400 bytes: four fit into a third of a bucket, and so three turns do."""
    leaf = Placed(4, shards(100, 1), shards(100, 1))
    (bundle,) = plan([leaf] * 10, 5250).bundles
    assert [len(turn) for turn in bundle.turns] == [4, 4, 2]
    (bundle,) = plan([leaf] * 9, 5250).bundles
    assert [len(turn) for turn in bundle.turns] == [3, 3, 3]


def test_leaves_that_go_other_ways_are_sent_apart():
    """Only one of two receivers gets the second leaf."""
    both, one = shards(800, 2), (((0, 800),), ((800, 800),))
    leaves = [Placed(4, both, both), Placed(4, one, one)]
    transfer = plan(leaves, 10**4)
    assert [len(bundle.routes) for bundle in transfer.bundles] == [2, 1]
    assert transfer.exchanges == 2
    carry_out(transfer, leaves, 10**4)


def test_a_transfer_of_nothing_needs_no_group():
    assert plan([Placed(4, (((0, 0),),), (((0, 0),),))], 4096) == ((), 0, 0)


def test_buckets_too_small_for_three_elements_are_refused():
    with pytest.raises(ValueError, match="bucket_bytes=11 is too small for 3 elements"):
        plan([Placed(4, shards(9, 1), shards(9, 1))], 11)
