"""Boxes: reading them from answers and rows, overlaps by hand, and matchings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.images import Size
from rl_sync.rewards.images.boxes import (
    FORMATS,
    Box,
    UnreadableBoxesError,
    boxes_of,
    iou,
    matched,
    read_boxes,
    read_points,
    scaled,
)

ONE = [Box(1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        ("[1, 2, 3, 4]", ONE),
        ("[[1, 2, 3, 4]]", ONE),
        ("1 2 3 4", ONE),
        ("1, 2, 3, 4.", ONE),
        ("It is at (1, 2, 3, 4), I think.", ONE),
        ('{"bbox_2d": [1, 2, 3, 4], "label": "cat"}', [Box(1, 2, 3, 4, "cat")]),
        ('```json\n[{"box": [1, 2, 3, 4]}]\n```', ONE),
        ('Here: [{"bbox": [1, 2, 3, 4], "label": "a"}] done', [Box(1, 2, 3, 4, "a")]),
        ("[[1, 2, 3, 4], [5, 6, 7, 8.5]]", [*ONE, Box(5, 6, 7, 8.5)]),
        ("[1, 2, 3, 4] and [5 6 7 8]", [*ONE, Box(5, 6, 7, 8)]),
        ("[.1, -2, 3e0, 4]", [Box(0.1, -2, 3, 4)]),
        ("See (2024). <box>(1,2),(3,4)</box>", ONE),
        ("<|box_start|>(10,20),(30,40)<|box_end|>", [Box(10, 20, 30, 40)]),
        ("(1,2),(3,4) and (5,6),(7,8.5)", [*ONE, Box(5, 6, 7, 8.5)]),
        ("[1, 2], [3, 4]", ONE),
        ("(1, 2) to (3, 4)", ONE),
        ("(1; 2; 3; 4)", ONE),
        ("<bbox>1 2 3 4</bbox>", ONE),
        ("[[1, 2, 3, 4],]", ONE),
        ('{"bbox_2d": [1, 2, 3, 4], "label": "cat",}', [Box(1, 2, 3, 4, "cat")]),
        ("[]", []),
    ],
)
def test_boxes_are_read_from_json_and_from_text(text, boxes):
    assert read_boxes(text, "xyxy") == boxes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no idea", "no group of 4 numbers"),
        ("", "no group of 4 numbers"),
        ("(29,56)", "no group of 4 numbers"),
        ("2024", "no group of 4 numbers"),
        ("(2956271474)", "no group of 4 numbers"),
        ("(0.1234)", "no group of 4 numbers"),
        ("[1, 2, 3]", "has 3 numbers, not 4"),
        ("[1, 2, 3, null]", "is not a list of 4 numbers"),
        ('{"where": [1, 2, 3, 4]}', "has none of bbox_2d"),
        ("[1, 2, 3, NaN]", "are not coordinates"),
        ("[1, 2, 3, Infinity]", "are not coordinates"),
        ("[1, 2, 3, 1e300]", "are not coordinates"),
        (f"[1, 2, 3, {'9' * 400}]", "are not coordinates"),
        (f"[1, 2, 3, {'9' * 9000}]", "are not coordinates"),
        ("[" * 10 + "]" * 10, "nested too deeply"),
        ("[" * 9000 + "]" * 9000, "no group of 4 numbers"),
        ("[1, 2, 3, 4]" * 600, "more than 500"),
        (str([[1, 2, 3, 4]] * 600), "more than 500"),
        ("[1, 2, 3, 4]" + " " * 20_000, "more than 20,000"),
    ],
)
def test_answers_without_boxes_say_why(text, message):
    with pytest.raises(UnreadableBoxesError, match=message):
        read_boxes(text, "xyxy")


def test_the_four_numbers_have_an_order():
    orders = {"xyxy": "1 2 4 6", "xywh": "1 2 3 4", "cxcywh": "2.5 4 3 4", "yxyx": "2 1 6 4"}
    assert orders.keys() == FORMATS.keys()
    for order, text in orders.items():
        assert read_boxes(text, order) == [Box(1, 2, 4, 6)]


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("[3, 4]", [(3, 4)]),
        ("(3, 4) and (5, 6)", [(3, 4), (5, 6)]),
        ('{"point_2d": [3, 4]}', [(3, 4)]),
        ('<point x="3.5" y="4">cat</point>', [(3.5, 4)]),
        ("3 4", [(3, 4)]),
    ],
)
def test_points_are_read_from_json_tags_and_text(text, points):
    assert read_points(text) == points


def test_overlaps_by_hand():
    a = Box(0, 0, 2, 2)
    assert iou(a, a) == 1
    assert iou(a, Box(1, 0, 3, 2)) == pytest.approx(2 / 6)
    assert iou(a, Box(1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert iou(a, Box(0, 0, 1, 1)) == pytest.approx(1 / 4)
    assert iou(a, Box(2, 0, 4, 2)) == 0  # They touch.
    assert iou(a, Box(3, 3, 1, 1)) == 0  # Its corners are in the wrong order.
    assert iou(Box(0, 0, 2, 2, "Cat "), Box(0, 0, 2, 2, "cat")) == 1
    assert iou(Box(0, 0, 2, 2, "dog"), Box(0, 0, 2, 2, "cat")) == 0
    assert iou(Box(0, 0, 2, 2, "dog"), a) == 1


_side = st.integers(-9, 9)


@given(st.tuples(_side, _side, _side, _side), st.tuples(_side, _side, _side, _side))
def test_overlap_is_symmetric_and_from_0_to_1(a, b):
    one, other = Box(*a), Box(*b)
    assert iou(one, other) == iou(other, one)
    assert 0 <= iou(one, other) <= 1
    assert iou(one, one) == float(one.area > 0)


def test_the_best_sum_may_need_another_than_the_best_pair():
    values = np.array([[0.9, 0.8], [0.8, 0.0]])
    assert matched(values, "greedy") == [(0, 0)]
    assert sorted(matched(values, "hungarian")) == [(0, 1), (1, 0)]
    assert matched(np.zeros((2, 3)), "greedy") == matched(np.zeros((2, 3)), "hungarian") == []
    assert matched(np.zeros((0, 3)), "hungarian") == []


def test_scales_are_converted_to_pixels():
    size = Size(200, 100)
    assert scaled([Box(0.5, 0.5, 1, 1)], "unit", size) == [Box(100, 50, 200, 100)]
    assert scaled([Box(500, 500, 1000, 1000, "a")], "thousand", size) == [
        Box(100, 50, 200, 100, "a")
    ]
    assert scaled([Box(1, 2, 3, 4)], "unit", None) == [Box(1, 2, 3, 4)]


def test_a_rows_boxes_may_be_values_text_or_arrays():
    values = ([1, 2, 3, 4], "[[1, 2, 3, 4]]", np.array([[1, 2, 3, 4]]), [{"box": (1, 2, 3, 4)}])
    for value in values:
        assert boxes_of(value, "xyxy") == ONE
    with pytest.raises(
        UnreadableBoxesError, match=r"has no area: is the order of its numbers xyxy\?"
    ):
        boxes_of([50, 50, 20, 30], "xyxy")
