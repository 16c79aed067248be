"""Shares hold every element once, and know who needs it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.weights.pieces import Piece, shares, word_count
from rl_sync.weights.regions import overlap, within
from tests.weights.test_regions import regions, shapes

HALVES = ((0, 4),), ((4, 8),)


@settings(deadline=None, max_examples=100)
@given(st.data(), shapes)
def test_readers_need_a_cell_whole_or_not_at_all(data, shape):
    whole = tuple((0, length) for length in shape)
    targets = data.draw(st.lists(regions(shape), max_size=4))
    (share,) = shares([whole, whole], targets)
    assert share.holders == (0, 1)
    seen = np.zeros(shape, int)
    for cell, readers in share.cells:
        seen[within(cell, whole)] += 1
        for target, region in enumerate(targets):
            assert overlap(cell, region) == (cell if target in readers else None)
    assert (seen == 1).all()


def test_each_holders_region_is_cut_for_its_own_readers():
    first, second = shares(HALVES, [((0, 8),), ((2, 4),)])
    assert first == ((0,), ((((0, 2),), (0,)), (((2, 4),), (0, 1))))
    assert second == ((1,), ((((4, 8),), (0,)),))


def test_a_scalar_has_readers_and_an_empty_leaf_has_no_cells():
    assert [*shares([()], [(), ()])] == [((0,), (((), (0, 1)),))]
    assert [*shares([((0, 0),)], [((0, 0),)])] == [((0,), ())]


def test_each_piece_begins_at_a_whole_word():
    pieces = [Piece(0, ((0, 3),)), Piece(1, ((2, 4),)), Piece(0, ())]
    assert word_count(pieces, [1, 8]) == 1 + 4 + 1
