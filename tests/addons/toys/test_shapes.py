"""Shapes: drawn scenes, the same as text, questions that are right, and their reward."""

import dataclasses

import numpy as np
import pytest

from rl_sync.addons.toys.scenes import COLORS, LEAST_CELL_PIXELS, SHAPES, Scene, SceneShape
from rl_sync.addons.toys.shapes import ShapesConfig, load
from rl_sync.configs import shapes as config_file
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from tests.addons.toys.problem_digest import problem_digest
from tests.tasks import loading

pytestmark = pytest.mark.gate

CONFIG = ShapesConfig(problems=200, held_out_problems=60)
CHANCE = {"count": 1 / 5, "color": 1 / 4, "side": 1 / 2, "bigger": 1 / 2}
"""Accuracy of the most frequent answer, of questions that have few answers."""
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


def shapes_seen(pixels):
    """Finds connected spots of one color; returns the number of pixels and the color of each."""
    codes = pixels.astype(int) @ [1 << 16, 1 << 8, 1]
    spots = []
    for name, color in COLORS.items():
        left = {tuple(at) for at in np.argwhere(codes == np.array(color) @ [1 << 16, 1 << 8, 1])}
        while left:
            spot, near = set(), [left.pop()]
            while near:
                y, x = near.pop()
                spot.add((y, x))
                around = {(y + a, x + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & left
                left -= around
                near += around
            (y1, x1), (y2, x2) = np.min(list(spot), 0), np.max(list(spot), 0)
            spots.append((len(spot), name, [x1, y1, x2 + 1, y2 + 1]))
    return spots


def test_a_scene_is_written_as_it_is_drawn():
    assert SCENE.text() == TEXT
    for item in SCENE.items:
        x1, y1, x2, y2 = item.text_box(1)
        lines = TEXT.split()
        found = [(x, y) for y, line in enumerate(lines) for x, c in enumerate(line)
                 if c == item.color[0]]  # fmt: skip
        assert (x1, y1) == tuple(np.min(found, 0))
        assert (x2, y2) == tuple(np.max(found, 0) + 1)


def test_problems_as_text_stay_the_same():
    small = ShapesConfig(as_text=True, cells=2)
    assert problem_digest(load(ShapesConfig(as_text=True), 0)) == "f0faaafc90aee55e"
    assert problem_digest(load(small, 7)) == "296566e09fe4ff65"


@pytest.mark.parametrize("side", [28, 31, 56])
def test_shapes_of_an_image_are_apart_and_fill_their_boxes(side):
    full = Scene(4, tuple(SceneShape(i % 4, i // 4, SHAPES[i % 3], "red", i % 2 == 0)
                          for i in range(16)))  # fmt: skip
    pixels = full.pixels(side)
    assert pixels.shape == (side, side, 3)
    boxes = [box for *_, box in shapes_seen(pixels)]
    assert sorted(boxes) == sorted(full.box(item, side) for item in full.items)


@pytest.mark.parametrize("cell", [LEAST_CELL_PIXELS, 9, 14, 18, 28])
def test_every_large_shape_has_more_pixels_than_every_small_one_and_no_two_look_the_same(cell):
    drawn = {
        (shape, small): Scene(2, (SceneShape(0, 0, shape, "red", small),)).pixels(2 * cell)
        for shape in SHAPES
        for small in (False, True)
    }
    ink = {key: shapes_seen(pixels)[0][0] for key, pixels in drawn.items()}
    large, small = ([ink[shape, one] for shape in SHAPES] for one in (False, True))
    assert min(large) > max(small)
    assert len({pixels.tobytes() for pixels in drawn.values()}) == 6


@pytest.mark.parametrize("side", [28, 56])
def test_answers_agree_with_what_is_seen_in_the_image(side):
    found = load(dataclasses.replace(CONFIG, side_pixels=side), seed=3)
    for one in (*found.train, *found.held_out):
        spots = shapes_seen(one.row["images"][0].pixels())
        words = one.text.rstrip("?.").split()
        if one.row["category"] == "count":
            assert sum(color == words[2] for _, color, _ in spots) == int(one.answer)
        if one.row["category"] == "color":
            assert one.answer in {color for _, color, _ in spots}
        if one.row["category"] == "bigger":
            sizes = {color: size for size, color, _ in spots}
            assert sizes[one.answer] == max(sizes[words[4]], sizes[words[7]])
            assert min(sizes[words[4]], sizes[words[7]]) < sizes[one.answer]
        if one.row["category"] == "box":
            color = words[-2]
            assert one.row["boxes"][0] in [box for _, name, box in spots if name == color]


def names_seen(pixels, cells=3):
    """Returns the name and the box of each shape, which it tells by its outline."""
    outlines = {}
    for shape in SHAPES:
        for small in (False, True):
            scene = Scene(cells, (SceneShape(0, 0, shape, "red", small),))
            x1, y1, x2, y2 = scene.box(scene.items[0], len(pixels))
            cut = scene.pixels(len(pixels))[y1:y2, x1:x2]
            outlines[(cut == COLORS["red"]).all(-1).tobytes()] = shape
    found = []
    for _, color, (x1, y1, x2, y2) in shapes_seen(pixels):
        outline = (pixels[y1:y2, x1:x2] == COLORS[color]).all(-1).tobytes()
        found.append((f"{color} {outlines[outline]}", [x1, y1, x2, y2]))
    return found


@pytest.mark.parametrize("side", [28, 56])
def test_shapes_that_a_question_names_are_seen_once(side):
    found = load(dataclasses.replace(CONFIG, side_pixels=side), seed=4)
    for one in (*found.train, *found.held_out):
        seen = names_seen(one.row["images"][0].pixels())
        words = one.text.rstrip("?.").split()
        if one.row["category"] == "side":
            first, second = " ".join(words[2:4]), " ".join(words[9:11])
            (left,), (right,) = ([box[0] + box[2] for name, box in seen if name == named]
                                 for named in (first, second))  # fmt: skip
            assert one.answer == ("left" if left < right else "right")
            assert left != right
        if one.row["category"] == "color":
            assert [name.split()[0] for name, _ in seen if name.endswith(words[-1])] == [one.answer]
        if one.row["category"] == "box":
            named = " ".join(words[-2:])
            assert [box for name, box in seen if name == named] == one.row["boxes"]


def test_answers_are_equally_frequent_whatever_the_question_says():
    found = load(ShapesConfig(problems=2000, held_out_problems=500), seed=0)
    for part in (found.train, found.held_out):
        for kind, chance in CHANCE.items():
            answers = [one.answer for one in part if one.row["category"] == kind]
            most = max(answers.count(answer) for answer in set(answers)) / len(answers)
            assert len(answers) == len(part) // 5
            assert most <= chance + 0.01 or kind == "bigger"
    first = [one.answer == one.row["choices"][0] for one in found.train if "bigger" in one.text]
    assert np.mean(first) == pytest.approx(0.5, abs=0.06)  # Three standard errors of 400.


def test_the_best_box_without_the_image_overlaps_little():
    found = load(ShapesConfig(questions="box", problems=500, held_out_problems=100), seed=0)
    right = [one.row["boxes"][0] for one in found.train]
    rows = [ScoringRequest(one.fields, Completion("")) for one in found.held_out]
    rubric = Rubric("vision")
    means = []
    for guess in [*map(str, {tuple(box) for box in right}), "[0, 0, 56, 56]", "[10, 10, 46, 46]"]:
        judged = rubric.judge([one._replace(completion=Completion(guess)) for one in rows])
        means.append(np.mean([one.score for one in judged]))
    assert 0.05 < max(means) < 0.1


@pytest.mark.parametrize("as_text", [False, True])
def test_an_oracle_gets_1_and_the_answers_of_other_questions_less(as_text):
    prompts = load(dataclasses.replace(CONFIG, as_text=as_text), seed=0).train
    rubric = Rubric("vision")
    rubric.check(one.fields for one in prompts)
    judged = rubric.judge([ScoringRequest(one.fields, Completion(one.answer)) for one in prompts])
    assert [one.score for one in judged] == [1.0] * len(prompts)
    kinds = 4 if as_text else 5
    shifted = [*prompts[kinds:], *prompts[:kinds]]  # Of the same kind.
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"questions": "size"}, r"task.shapes.questions='size' is not one of .*; did you mean 's"),
        ({"questions": ""}, "names no question"),
        ({"questions": "bigger", "as_text": True}, "questions=bigger asks about sizes.*as_text=f"),
        ({"side_pixels": 20}, "side_pixels=20 is too small .* 3 times 3 cells: use 21 or more"),
        ({"most_shapes": 1}, "most_shapes=1 leaves nothing to compare .* side, bigger: use 2"),
        ({"most_shapes": 10}, "most_shapes=10 do not fit into 3 times 3 cells"),
    ],
)
def test_a_config_outside_its_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **fields)
