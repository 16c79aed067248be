"""Shapes: drawn scenes, the same as text, questions that are right, and their reward."""

import dataclasses

import numpy as np
import pytest

from rl_sync.configs import shapes as config_file
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.toy.scenes import COLORS, UNIT_PIXELS, Scene, SceneShape
from rl_sync.tasks.toy.shapes import QUESTIONS, ShapesConfig, load
from tests.tasks import loading

CONFIG = ShapesConfig(problems=200, held_out_problems=60)
SCENE = Scene(
    3,
    (
        SceneShape(1, 0, "square", "red"),
        SceneShape(0, 1, "triangle", "blue"),
        SceneShape(2, 2, "circle", "green"),
    ),
)
TEXT = """\
...rrr...
...rrr...
...rrr...
.b.......
.b.......
bbb......
.......g.
......ggg
.......g.
"""


def test_a_scene_is_written_as_it_is_drawn():
    assert SCENE.text() == TEXT
    assert SCENE.image().size() == (9 * UNIT_PIXELS, 9 * UNIT_PIXELS)


@pytest.mark.parametrize("unit", [1, UNIT_PIXELS])
def test_a_box_holds_all_of_its_shape_and_nothing_else_of_its_color(unit):
    pixels = SCENE.pixels()
    if unit == 1:
        pixels = pixels[UNIT_PIXELS // 2 :: UNIT_PIXELS, UNIT_PIXELS // 2 :: UNIT_PIXELS]
    for item in SCENE.items:
        rows, columns = np.nonzero((pixels == COLORS[item.color]).all(-1))
        x1, y1, x2, y2 = item.box(unit)
        assert (x1, y1) == (columns.min(), rows.min())
        assert (x2, y2) == (columns.max() + 1, rows.max() + 1)


@pytest.mark.parametrize("as_text", [False, True])
def test_an_oracle_gets_1_and_the_answers_of_other_questions_less(as_text):
    prompts = load(dataclasses.replace(CONFIG, as_text=as_text), seed=0).train
    rubric = Rubric("vision")
    rubric.check(one.fields for one in prompts)
    judged = rubric.judge([ScoringRequest(one.fields, Completion(one.answer)) for one in prompts])
    assert [one.score for one in judged] == [1.0] * len(prompts)
    shifted = [*prompts[4:], *prompts[:4]]  # Of the same kind.
    others = [
        ScoringRequest(one.fields, Completion(other.answer))
        for one, other in zip(prompts, shifted, strict=True)
        if one.answer != other.answer
    ]
    assert sum(one.score for one in rubric.judge(others)) < 0.1 * len(others)


def test_questions_agree_with_what_is_seen_as_text():
    found = load(dataclasses.replace(CONFIG, as_text=True), seed=3)
    for one in found.train:
        lines = one.text.split("\n")
        grid, question = lines[:-1], lines[-1]
        kind = one.row["kind"]
        if kind == "box":
            x1, y1, x2, y2 = one.row["boxes"][0]
            color = question.split()[-2][0]
            assert {grid[y][x] for y in range(y1, y2) for x in range(x1, x2)} <= {color, "."}
            assert all(color in grid[y][x1:x2] for y in range(y1, y2))
        if kind == "words":
            assert one.answer[0] in "".join(grid)
        if kind == "count" and one.answer == "0":
            assert question.split()[2][0] not in "".join(grid)


def test_the_seed_decides_and_no_problem_is_on_both_sides():
    text = dataclasses.replace(CONFIG, as_text=True)
    first, again, other = (load(text, seed) for seed in (0, 0, 1))
    assert first == again
    assert first.train != other.train
    texts = [one.text for one in (*first.train, *first.held_out)]
    assert len(set(texts)) == 260
    assert load(CONFIG, 0) == load(CONFIG, 0)


def test_some_answers_are_demonstrated_and_carry_no_image():
    found = load(dataclasses.replace(CONFIG, demonstrated=0.25), 0)
    assert len(found.demonstrations) == 50
    for one in found.demonstrations:
        assert one.row is None
        assert one.answer == found.train[one.prompt_id].answer


def test_images_count_when_it_is_said_which_problems_were_seen():
    task = loading.load(name="shapes", shapes__problems=200, shapes__held_out_problems=60)
    assert task.shows_images
    assert not any(map(task.is_seen, task.held_out))
    assert {one.text for one in task.held_out} & {one.text for one in task.train}


def test_a_policy_that_reads_text_alone_is_refused_unless_the_image_is_written_as_text():
    config = config_file.get_config()
    config.workdir = "none"
    task = wiring.load_task(read_settings(config.to_dict()))
    assert not task.shows_images
    assert task.reward == "vision"
    config.task.shapes.as_text = False
    with pytest.raises(ConfigError, match=r"task.name=shapes asks about images.*shapes.as_text=tr"):
        wiring.load_task(read_settings(config.to_dict()))


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_single_kind_of_question_can_be_chosen(name):
    found = load(dataclasses.replace(CONFIG, questions=name, problems=20, held_out_problems=5), 0)
    assert len({one.row["kind"] for one in found.train}) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"questions": "size"}, r"task.shapes.questions='size' is not one of .*; did you mean 's"),
        ({"questions": ""}, "names no question"),
        ({"most_shapes": 10}, "most_shapes=10 do not fit into 3 times 3 cells"),
    ],
)
def test_a_config_outside_its_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **fields)


def test_more_problems_than_there_are_are_refused():
    few = dataclasses.replace(CONFIG, cells=2, most_shapes=1, questions="color", problems=500)
    with pytest.raises(ValueError, match=r"has \d+ different problems .* fewer than the 560"):
        load(few, 0)
