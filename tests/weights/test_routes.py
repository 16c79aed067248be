"""Plans of transfers: carried out on numpy arrays, and looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.weights.routes import Placed, TransferPlan, plan_transfer, word_count


def cut_evenly(shape: tuple[int, ...], cuts: tuple[int, ...], copies: int) -> tuple:
    """The boxes of devices on a grid, each cut `copies` times; the copies come innermost."""
    boxes = []
    for place in np.ndindex(*cuts):
        widths = [size // cut for size, cut in zip(shape, cuts, strict=True)]
        box = tuple((i * w, (i + 1) * w) for i, w in zip(place, widths, strict=True))
        boxes += [box] * copies
    return tuple(boxes)


@st.composite
def placed(draw, sources: int, targets: int) -> Placed:
    """A parameter, cut along its axes on so many devices of each side."""
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


def shape_of(box) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def carry_out(plan: TransferPlan, leaves: list[Placed]) -> None:
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
    for wave in plan.waves:
        assert len({route.source for route in wave}) == len(wave), "one sends twice at once"
        assert len({route.target for route in wave}) == len(wave), "one receives twice at once"
        for route in wave:
            for bucket in route.buckets:
                sizes = [word_count(piece.box, leaves[piece.leaf].itemsize) for piece in bucket]
                assert 0 < sum(sizes) <= plan.bucket_words
                for number, box in bucket:
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
    plan = plan_transfer(leaves, bucket_bytes)
    assert plan.bucket_words * 4 <= bucket_bytes
    carry_out(plan, leaves)


def shards(size: int, devices: int, copies: int = 1) -> tuple:
    return cut_evenly((size,), (devices,), copies)


def test_equal_shards_go_straight_across_in_one_wave():
    plan = plan_transfer([Placed(4, shards(80, 4), shards(80, 4))], 10**6)
    (wave,) = plan.waves
    assert [(route.source, route.target) for route in wave] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert plan.bucket_words == 20


def test_rows_become_columns_in_as_many_waves_as_there_are_devices():
    rows, columns = cut_evenly((8, 8), (4, 1), 1), cut_evenly((8, 8), (1, 4), 1)
    plan = plan_transfer([Placed(4, rows, columns)], 10**6)
    assert [len(wave) for wave in plan.waves] == [4, 4, 4, 4]


def test_those_that_hold_the_same_send_equal_shares():
    plan = plan_transfer([Placed(4, shards(80, 1, copies=2), shards(80, 1, copies=6))], 10**6)
    sent = [route.source for wave in plan.waves for route in wave]
    assert sorted(sent) == [0, 0, 0, 1, 1, 1]
    assert len(plan.waves) == 3


def test_small_parameters_share_a_bucket_and_large_ones_are_cut():
    small = [Placed(4, shards(10, 1), shards(10, 1))] * 200
    ((route,),) = plan_transfer(small, 4096).waves
    assert [len(bucket) for bucket in route.buckets] == [103, 98]  # 102 wholes and a part
    ((route,),) = plan_transfer([Placed(2, shards(5000, 1), shards(5000, 1))], 4096).waves
    boxes = [piece.box for bucket in route.buckets for piece in bucket]
    assert boxes == [((0, 2048),), ((2048, 4096),), ((4096, 5000),)]


def test_a_bucket_is_filled_to_seven_eighths_whatever_the_rows():
    box = cut_evenly((40, 300), (1, 1), 1)
    ((route,),) = plan_transfer([Placed(4, box, box)], 4 * 1000).waves
    filled = [sum(word_count(piece.box, 4) for piece in bucket) for bucket in route.buckets]
    assert min(filled[:-1]) >= 875
    assert sum(filled) == 12_000


def test_a_transfer_of_nothing_needs_no_wave():
    assert plan_transfer([Placed(4, (((0, 0),),), (((0, 0),),))], 4096).waves == ()


def test_a_bucket_too_small_for_an_element_is_refused():
    with pytest.raises(ValueError, match="bucket_bytes=7"):
        plan_transfer([], 7)
