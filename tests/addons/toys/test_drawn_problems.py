"""Drawn problems: the seed, different images, single kinds, demonstrations, and their number."""

import dataclasses

import pytest

from rl_sync.addons.toys import board, chart, shape_images, shapes

pytestmark = pytest.mark.gate

TASKS = {
    "board": (board, board.BoardConfig, board.KINDS),
    "chart": (chart, chart.ChartConfig, chart.KINDS),
    "shapes": (shapes, shapes.ShapesConfig, shape_images.KINDS),
}
FEW = {
    "board": {"squares": 3, "holes": 0.01, "problems": 2000},
    "chart": {"most_value": 3, "most_bars": 2},
    "shapes": {"cells": 2, "most_shapes": 1, "questions": "color", "problems": 4500},
}
"""Settings that have fewer different problems than are wanted."""


@pytest.mark.parametrize("name", TASKS)
def test_the_seed_decides_and_no_two_problems_have_the_same_image(name):
    module, record, _ = TASKS[name]
    config = record(problems=240, held_out_problems=60)
    first, again, other = (module.load(config, seed) for seed in (0, 0, 1))
    assert first == again
    assert first.train != other.train
    assert [len(first.train), len(first.held_out)] == [240, 60]
    images = [one.row["images"][0] for one in (*first.train, *first.held_out)]
    assert len({image.digest for image in images}) == 300
    assert max(len(image.content()) for image in images) < 1000


@pytest.mark.parametrize("name", TASKS)
def test_some_answers_are_demonstrated_and_carry_no_image(name):
    module, record, _ = TASKS[name]
    found = module.load(record(problems=40, held_out_problems=5, demonstrated=0.25), 0)
    assert len(found.demonstrations) == 10
    for one in found.demonstrations:
        assert one.row is None
        assert one.answer == found.train[one.prompt_id].answer


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, (*_, kinds) in TASKS.items() for kind in kinds]
)
def test_a_single_kind_of_question_can_be_chosen(name, kind):
    module, record, _ = TASKS[name]
    found = module.load(record(questions=kind, problems=20, held_out_problems=5), 0)
    assert {one.row["category"] for one in found.train} == {kind}


@pytest.mark.parametrize("name", TASKS)
def test_more_problems_than_there_are_are_refused(name):
    module, record, _ = TASKS[name]
    config = dataclasses.replace(record(), **FEW[name])
    with pytest.raises(
        ValueError, match=rf"task.{name} has \d+ diff.* fewer than the {config.wanted}"
    ):
        module.load(config, 0)
