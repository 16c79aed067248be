"""Formats: boxes of one shape cover each part within the turns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.weights.formats import Group, Kind, Part, make_format, union

SIZES = st.integers(1, 3000) | st.sampled_from([1, 2, 28, 448, 896])


def covered(form, part) -> np.ndarray:
    """Returns how often each element of a part is sent."""
    counts = np.zeros(part.shape, int)
    for turn in range(form.turns):
        for sent, box in form.at(turn):
            if sent == part:
                counts[tuple(slice(*interval) for interval in box)] += 1
    return counts


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(SIZES, max_size=3), min_size=1, max_size=5),
    st.sampled_from([200, 1000, 30_000]),
)
def test_every_element_is_sent_within_the_bucket(shapes, bucket_bytes):
    shapes = [tuple(shape) for shape in shapes if math.prod(shape) < 10**4]
    parts = [Part(leaf, shape, 0) for leaf, shape in enumerate(shapes)]
    form = make_format(parts, [Kind(4, "f4")] * len(parts), 3, bucket_bytes)
    assert sum(math.prod(box) * 4 for _, box in form.slots) + 12 <= bucket_bytes
    assert all(covered(form, part).min(initial=1) > 0 for part in parts)
    for turn in range(form.turns):
        assert len(list(form.at(turn))) == len(form.slots)


def test_parts_that_are_alike_take_turns_uncut():
    parts = [Part(leaf, (15, 8), 0) for leaf in range(25)]
    form = make_format(parts, [Kind(4, "f4")] * 25, 0, 3000)
    assert (form.turns, form.slots) == (5, ((0, (15, 8)),) * 5)
    assert all((covered(form, part) == 1).all() for part in parts)


def test_of_parts_that_no_turns_divide_some_are_sent_twice():
    group = Group(tuple(Part(leaf, (4,), 0) for leaf in range(7)), (4,), 4)
    sent = [[part.leaf for part, _ in group.at(turn)] for turn in range(2)]
    assert sent == [[0, 1, 2, 3], [3, 4, 5, 6]]


def test_leaves_of_other_dtypes_or_shards_have_slots_of_their_own():
    """One that takes the slot of another would be cut out by another program."""
    parts = [Part(leaf, (4,), 0) for leaf in range(4)]
    kinds = [Kind(4, name) for name in ("f4", "f4", "i4", "i4")]
    form = make_format(parts, kinds, 0, 32)
    sent = [[part.leaf for part, _ in form.at(turn)] for turn in range(form.turns)]
    assert sent == [[0, 2], [1, 3]]


def test_layers_are_cut_before_rows_and_long_rows_at_multiples_of_a_tile():
    part, kind = Part(0, (28, 4000, 48), 0), Kind(2, "bf16")
    form = make_format([part], [kind], 0, part.shape[1] * part.shape[2] * 2 * 4)
    assert (form.turns, form.slots[0][1]) == (7, (4, 4000, 48))
    rows = Part(0, (5431, 48), 0)
    form = make_format([rows], [kind], 0, 2720 * 48 * 2)
    assert (form.turns, form.slots[0][1]) == (2, (2720, 48))


def test_a_union_has_each_part_once():
    one, other, third = (Part(leaf, (4,), 0) for leaf in range(3))
    assert union([[one, other], [other, third]]) == (one, other, third)


def test_buckets_too_small_are_refused():
    with pytest.raises(ValueError, match=r"bucket_bytes=12 .* each of 2 parts"):
        make_format([Part(0, (5,), 0), Part(1, (6,), 0)], [Kind(4, "")] * 2, 2, 12)
