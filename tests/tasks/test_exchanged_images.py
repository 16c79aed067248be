"""Images exchanged between problems: nothing can be learned from them any more."""

import numpy as np
import pytest

from rl_sync.addons.toys import board, chart, digits, shapes
from rl_sync.images import Image
from rl_sync.tasks.exchanged_images import with_exchanged_images
from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt
from tests.tasks import loading


def numbered(count, first=0):
    """Returns prompts whose image is a gray of their number, beside a prompt without images."""
    grays = [Image.of_array(np.full((2, 2), first + i, np.uint8)) for i in range(count)]
    seeing = [
        Prompt(i, f"q{i}", str(i), {"images": [gray], "kind": "count", "number": i})
        for i, gray in enumerate(grays)
    ]
    return [*seeing, Prompt(count, "no image", "1", {"kind": "count"})]


def shown(prompt):
    return int(prompt.row["images"][0].pixels()[0, 0, 0])


PROBLEMS = Problems(
    train=numbered(20), held_out=numbered(10, first=100), demonstrations=numbered(20)[3:5]
)


def test_each_problem_gets_the_images_of_another_one_of_its_part_and_keeps_the_rest():
    found = with_exchanged_images(PROBLEMS, seed=0)
    for before, after, first in (
        (PROBLEMS.train, found.train, 0),
        (PROBLEMS.held_out, found.held_out, 100),
    ):
        *seeing, blind = after
        assert blind == before[-1]
        numbers = [shown(one) - first for one in seeing]
        assert sorted(numbers) == list(range(len(seeing)))
        assert all(number != i for i, number in enumerate(numbers))
        for old, new in zip(before, seeing, strict=False):
            assert old[:3] == new[:3]
            assert {**old.row, "images": None} == {**new.row, "images": None}


def test_demonstrations_show_what_their_training_problems_show():
    found = with_exchanged_images(PROBLEMS, seed=0)
    for one in found.demonstrations:
        assert shown(one) == shown(found.train[one.prompt_id])
    bare = [one._replace(row=None) for one in PROBLEMS.demonstrations]
    assert with_exchanged_images(
        Problems(PROBLEMS.train, PROBLEMS.held_out, bare), 0
    ).demonstrations == bare  # fmt: skip


def test_the_seed_decides():
    first, again, other = (
        [shown(one) for one in with_exchanged_images(PROBLEMS, seed).train[:-1]]
        for seed in (0, 0, 1)
    )
    assert first == again != other


def features(prompts):
    """Returns pixels of prompts that have images of one size, and a constant."""
    pixels = np.stack([one.row["images"][0].pixels().reshape(-1) for one in prompts]) / 255.0
    return np.concatenate([pixels, np.ones((len(pixels), 1))], 1)


def learned_accuracy(problems):
    """Returns the held-out accuracy of a ridge regression from pixels to answers."""
    answers = sorted({one.answer for one in problems.train})
    right = np.array([[one.answer == a for a in answers] for one in problems.train], float)
    pixels, others = features(problems.train), features(problems.held_out)
    kernel = pixels @ pixels.T
    weights = np.linalg.solve(kernel + 0.01 * len(kernel) * np.eye(len(kernel)), right)
    guesses = (others @ pixels.T @ weights).argmax(1)
    return np.mean(
        [answers[i] == one.answer for i, one in zip(guesses, problems.held_out, strict=True)]
    )


SIZES = {"problems": 600, "held_out_problems": 400}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("problems", "chance", "least"),
    [
        pytest.param(
            lambda: shapes.load(shapes.ShapesConfig(questions="color", side_pixels=28, **SIZES), 0),
            0.25,
            0.4,
            id="color",
        ),
        pytest.param(
            lambda: chart.load(chart.ChartConfig(questions="highest", side_pixels=28, **SIZES), 0),
            0.25,
            0.5,
            id="highest",
        ),
        pytest.param(
            lambda: board.load(board.BoardConfig(questions="move", side_pixels=28, **SIZES), 0),
            0.25,
            0.5,
            id="move",
        ),
        pytest.param(
            lambda: digits.load(digits.DigitsConfig(side_pixels=16), 0), 0.1, 0.85, id="read"
        ),
    ],
)
def test_a_policy_learns_from_images_and_stays_at_chance_with_exchanged_ones(
    problems, chance, least
):
    if chance == 0.1:
        pytest.importorskip("sklearn")
    found = problems()
    error = (chance * (1 - chance) / len(found.held_out)) ** 0.5
    assert learned_accuracy(found) > least
    assert learned_accuracy(with_exchanged_images(found, 0)) < chance + 4 * error


@pytest.mark.parametrize("name", ["chart", "board", "shapes"])
def test_a_setting_exchanges_the_images_of_any_task(name):
    sizes = {f"{name}__problems": 40, f"{name}__held_out_problems": 20}
    seen, blind = (
        loading.load(name=name, exchange_images=exchange, **sizes) for exchange in (False, True)
    )
    assert [one[:3] for one in seen.train] == [one[:3] for one in blind.train]
    images = [[one.row["images"][0].digest for one in task.train] for task in (seen, blind)]
    assert sorted(images[0]) == sorted(images[1])
    assert all(a != b for a, b in zip(*images, strict=True))


def test_a_task_without_images_or_with_one_is_refused():
    with pytest.raises(ValueError, match=r"task.exchange_images needs at least two .* 0 of 11,683"):
        loading.load(name="arithmetic", exchange_images=True)
    one = Problems(train=numbered(1), held_out=numbered(2), demonstrations=[])
    with pytest.raises(ValueError, match=r"and 1 of 2 have some: set it to false"):
        with_exchanged_images(one, 0)
