"""Rewards for boxes and points: scores by hand, options, and what is refused."""

import numpy as np
import pytest

from rl_sync.images import Image
from rl_sync.rewards.images.grounding import BoxOverlap, PointInBox
from rl_sync.rewards.judgement import Completion

IMAGE = Image.of_array(np.zeros((100, 200, 3), np.uint8))


def judged(reward, row, text, **fields):
    reward.check(row)
    return reward(row, Completion(text, **fields))


def score(reward, row, text, **fields):
    return judged(reward, row, text, **fields).score


@pytest.mark.parametrize(
    ("boxes", "text", "expected"),
    [
        ([0, 0, 2, 2], "[0, 0, 2, 2]", 1),
        ([0, 0, 2, 2], "<answer>[1, 0, 3, 2]</answer>", 1 / 3),
        ([0, 0, 2, 2], "First [9, 9, 10, 10].\nThe answer is: [0, 0, 2, 2].", 1),
        ([0, 0, 2, 2], "I cannot see it.", 0),
        ([0, 0, 2, 2], "[2, 2, 0, 0]", 0),
        ([0, 0, 2, 2], "[[0, 0, 2, 2], [5, 5, 6, 6]]", 1 / 2),
        ([[0, 0, 2, 2], [5, 5, 6, 6]], "[0, 0, 2, 2]", 1 / 2),
        ([[0, 0, 2, 2], [5, 5, 6, 6]], "[[5, 5, 6, 6], [0, 0, 2, 2]]", 1),
        ([[0, 0, 2, 2]], "[[0, 0, 2, 2]" + ", [0, 0, 2, 2]" * 3 + "]", 1 / 4),
        ([], "[]", 1),
        ([], "[0, 0, 1, 1]", 0),
    ],
)
def test_the_overlap_is_graded(boxes, text, expected):
    assert score(BoxOverlap(), {"boxes": boxes}, text) == pytest.approx(expected)


@pytest.mark.parametrize(("text", "expected"), [("[0, 0, 2, 2]", 1), ("[1, 0, 3, 2]", 0)])
def test_a_threshold_makes_it_a_hit_or_none(text, expected):
    row = {"boxes": [0, 0, 2, 2]}
    assert score(BoxOverlap(threshold=0.5), row, text) == expected
    assert score(BoxOverlap(threshold=1 / 3), row, text) == 1


def test_labels_must_agree_where_both_have_one():
    row = {"boxes": [{"bbox": [0, 0, 2, 2], "label": "cat"}]}
    assert score(BoxOverlap(), row, '[{"bbox_2d": [0, 0, 2, 2], "label": "Cat"}]') == 1
    assert score(BoxOverlap(), row, '[{"bbox_2d": [0, 0, 2, 2], "label": "dog"}]') == 0
    assert score(BoxOverlap(), row, "[0, 0, 2, 2]") == 1


@pytest.mark.parametrize("fields", [{"images": [IMAGE]}, {"image_size": [200, 100]}])
def test_answers_in_other_coordinates_are_converted_by_the_image(fields):
    row = {"boxes": [100, 50, 200, 100], **fields}
    assert score(BoxOverlap(answer_scale="unit"), row, "[0.5, 0.5, 1, 1]") == 1
    assert score(BoxOverlap(answer_scale="thousand"), row, "[500, 500, 1000, 1000]") == 1
    of_unit = {"boxes": [0.5, 0.5, 1, 1], **fields}
    pixels = BoxOverlap(scale="unit", answer_scale="pixels")
    assert score(pixels, of_unit, "[100, 50, 200, 100]") == 1
    assert score(pixels, of_unit, "[0, 50, 200, 100]") == pytest.approx(1 / 2)
    point = PointInBox(answer_scale="unit")
    assert (score(point, row, "[0.75, 0.75]"), score(point, row, "[0.4, 0.75]")) == (1, 0)


@pytest.mark.parametrize(
    ("options", "text", "expected", "off_scale", "why"),
    [
        ({}, "[100, 50, 200, 100]", 1, 0, "overlaps 1.00"),
        ({"answer_scale": "unit"}, "[0.5, 0.5, 1, 1]", 1, 0, "overlaps 1.00"),
        ({"answer_scale": "thousand"}, "[500, 500, 1000, 1000]", 1, 0, "overlaps 1.00"),
        # [50, 50, 150, 100] in pixels: 2500 shared of 7500.
        ({"answer_scale": "thousand"}, "[250, 500, 750, 1000]", 1 / 3, 0, "overlaps 0.33"),
        ({}, "[[150, 50, 200, 100],]", 1 / 2, 0, "overlaps 0.50"),
        ({}, '[{"bbox_2d": [100, 50, 150, 100],}]', 1 / 2, 0, "overlaps 0.50"),
        # [60, 50, 260, 100] reaches over the edge: 5000 shared of 10000.
        ({}, "[60, 50, 260, 100]", 1 / 2, 0, "overlaps 0.50"),
        ({}, "[200, 100, 100, 50]", 0, 0, "1 without area: order=xyxy may be wrong"),
        ({}, "[100, 50, 100, 50]", 0, 0, "1 without area: order=xyxy may be wrong"),
        ({}, "[0.5, 0.5, 1, 1]", 0, 1, "no coordinate is above 1: answer_scale=pixels may be"),
        ({}, "[500, 500, 1000, 1000]", 0, 1, "far beyond 200 × 100: answer_scale=pixels or order"),
        ({"answer_scale": "unit"}, "[100, 50, 200, 100]", 0, 1, "beyond 1 × 1: answer_scale=unit"),
        ({"answer_scale": "thousand"}, "[0.5, 0.5, 1, 1]", 0, 1, "answer_scale=thousand may be"),
    ],
)
def test_coordinates_of_another_scale_are_told(options, text, expected, off_scale, why):
    row = {"boxes": [100, 50, 200, 100], "images": [IMAGE]}
    of_box = judged(BoxOverlap(**options), row, text)
    assert of_box.score == pytest.approx(expected)
    assert of_box.components == {"off_scale": off_scale}
    assert why in of_box.why


def test_points_of_another_scale_are_told():
    row = {"boxes": [0, 50, 200, 100], "images": [IMAGE]}
    of_unit = judged(PointInBox(), row, "[0.5, 0.75]")
    assert (of_unit.score, of_unit.components) == (0, {"off_scale": 1})
    assert "answer_scale=pixels may be wrong" in of_unit.why
    right = judged(PointInBox(answer_scale="unit"), row, "[0.5, 0.75]")
    assert (right.score, right.components) == (1, {"off_scale": 0})


def test_an_answer_is_judged_where_the_image_is_not():
    row = {"boxes": [0, 0, 20, 10], "images": ["/elsewhere.png"]}
    assert BoxOverlap()(row, Completion("[0, 0, 20, 10]")).score == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("[1, 1]", 1), ("[3, 3]", 0), ("[2, 2]", 1), ("nowhere", 0), ("[[1, 1], [9, 9]]", 1 / 2)],
)
def test_a_point_is_in_the_box_or_not(text, expected):
    assert score(PointInBox(), {"boxes": [0, 0, 2, 2]}, text) == expected


def test_each_box_wants_a_point_unless_any_will_do():
    row = {"boxes": [[0, 0, 2, 2], [5, 5, 6, 6]]}
    assert score(PointInBox(), row, "[1, 1]") == 1 / 2
    assert score(PointInBox(), row, "[[1, 1], [1.5, 1.5]]") == 1 / 2
    assert score(PointInBox(), row, "[[1, 1], [5.5, 5.5]]") == 1
    assert score(PointInBox(boxes="any"), row, "[5.5, 5.5]") == 1
    assert score(PointInBox(boxes="any"), row, "[[1, 1], [5.5, 5.5]]") == 1 / 2


def test_a_malformed_answer_is_wrong_with_the_reason_and_a_malformed_row_is_not_judged():
    row = {"boxes": [0, 0, 2, 2]}
    for reward in (BoxOverlap(), PointInBox()):
        for text in ("[1, 2, 3]", "{}", "[" * 5000, "nan nan nan nan", "\\boxed{", "1" * 30_000):
            wrong = judged(reward, row, text)
            assert wrong.score == 0
            assert wrong.why
        assert reward({"boxes": "here"}, Completion("[1, 1]")).score is None
        assert reward({}, Completion("[1, 1]")).score is None


def test_a_truncated_answer_counts_only_if_its_end_is_marked():
    row = {"boxes": [0, 0, 2, 2]}
    assert score(BoxOverlap(), row, "[0, 0, 2, 2]", truncated=True) == 0
    assert score(BoxOverlap(), row, "<answer>[0, 0, 2, 2]</answer>", truncated=True) == 1


@pytest.mark.parametrize(
    ("options", "row", "message"),
    [
        ({}, {}, r"row\['boxes'\] is missing"),
        ({"field": "where"}, {"boxes": [0, 0, 1, 1]}, r"row\['where'\] is missing"),
        ({}, {"boxes": [0, 0, 1]}, r"row\['boxes'\]: .* has 3 numbers, not 4"),
        ({}, {"boxes": "here"}, r"row\['boxes'\]: 'here' is not JSON"),
        ({}, {"boxes": [5, 5, 2, 2]}, r"has no area: is the order"),
        ({"scale": "unit"}, {"boxes": [0, 0, 9, 9]}, r"scale=unit goes from 0 to 1: use scale='p"),
        ({}, {"boxes": [0.1, 0.2, 0.9, 1]}, r"above 1, and scale=pixels: use scale='unit'\?"),
        ({"scale": "thousand"}, {"boxes": [0, 0, 1, 1]}, r"above 1, and scale=thousand: use"),
        (
            {},
            {"boxes": [500, 500, 1000, 1000], "images": [IMAGE]},
            r"\[500, 500, 1000, 1000\] is far outside .* 200 × 100 pixels: use scale='thousand'",
        ),
        ({"answer_scale": "unit"}, {"boxes": [0, 0, 9, 9]}, r"row\['images'\] or row\['image_size"),
        (
            {"answer_scale": "unit"},
            {"boxes": [0, 0, 9, 9], "image_size": [0, 5]},
            r"row\['image_size'\]=\[0, 5\] must be \[width, height\]",
        ),
        ({}, {"boxes": [0, 0, 9, 9], "images": ["/no.png"]}, r"row\['images'\]\[0\]: /no.png cann"),
    ],
)
def test_a_bad_row_is_refused_before_the_run(options, row, message):
    with pytest.raises(ValueError, match=message):
        BoxOverlap(**options).check(row)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "xxyy"}, "order='xxyy' is not one of"),
        ({"scale": "percent"}, "scale='percent' is not one of"),
        ({"answer_scale": "1"}, "answer_scale='1' is not one of"),
        ({"matching": "best"}, "matching='best' is not one of"),
        ({"threshold": 1.5}, "threshold=1.5 must be from 0"),
        ({"extract": "luck"}, "extract='luck' is not one of"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BoxOverlap(**options)


def test_a_row_without_boxes_has_nothing_to_point_into():
    with pytest.raises(ValueError, match="is empty: it must have a box"):
        PointInBox().check({"boxes": []})
