"""Charts: answers that the pixels show, equally frequent answers, and their reward."""

import dataclasses

import numpy as np
import pytest

from rl_sync.addons.toys.chart import ChartConfig, chart_pixels, load
from rl_sync.addons.toys.scenes import COLORS
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest

CONFIG = ChartConfig(problems=240, held_out_problems=60)
CHANCE = {"value": 1 / 10, "highest": 1 / 4, "difference": 1 / 9}
"""Accuracy of the most frequent answer."""


def heights_seen(pixels, unit):
    """Returns the height of each bar in units, by color."""
    found = {}
    for name, color in COLORS.items():
        rows = np.flatnonzero((pixels == color).all(-1).any(1))
        if len(rows):
            found[name] = len(rows) / unit
    return found


def test_a_chart_has_a_line_for_each_unit_and_bars_that_reach_theirs():
    pixels = chart_pixels({"blue": 3, "red": 7}, most_value=10, side_pixels=56)
    assert heights_seen(pixels, unit=5) == {"blue": 3, "red": 7}
    grays = pixels[:, 0, 0].tolist()  # Left of the first bar.
    lines = {55 - row: gray for row, gray in enumerate(grays) if gray < 255}
    assert sorted(lines) == list(range(0, 51, 5))
    assert [at for at, gray in lines.items() if gray < 200] == [50, 25, 0]
    columns = [np.flatnonzero((pixels[-2] == COLORS[one]).all(-1)) for one in ("blue", "red")]
    assert columns[0].max() + 1 < columns[1].min()


@pytest.mark.parametrize(("side", "most", "unit"), [(56, 10, 5), (28, 10, 2), (64, 19, 3)])
def test_answers_agree_with_what_is_seen_in_the_image(side, most, unit):
    found = load(dataclasses.replace(CONFIG, side_pixels=side, most_value=most), seed=3)
    for one in (*found.train, *found.held_out):
        pixels = one.row["images"][0].pixels()
        assert pixels.shape == (side, side, 3)
        seen = heights_seen(pixels, unit)
        words = one.text.rstrip("?").split()
        if one.row["category"] == "value":
            assert seen[words[4]] == int(one.answer)
        if one.row["category"] == "highest":
            assert [name for name in seen if seen[name] == max(seen.values())] == [one.answer]
        if one.row["category"] == "difference":
            assert seen[words[5]] - seen[words[10]] == int(one.answer) > 0


@pytest.mark.gate
def test_answers_are_equally_frequent():
    found = load(ChartConfig(problems=1800, held_out_problems=360), seed=0)
    for part in (found.train, found.held_out):
        for kind, chance in CHANCE.items():
            answers = [one.answer for one in part if one.row["category"] == kind]
            most = max(answers.count(answer) for answer in set(answers)) / len(answers)
            assert len(answers) == len(part) // 3
            assert most == pytest.approx(chance, abs=0.01)


def test_only_the_right_answer_gets_1_although_numbers_have_a_tolerance():
    found = load(dataclasses.replace(CONFIG, most_value=19), seed=1)
    rubric = Rubric("vision")
    rubric.check(one.fields for one in found.train)
    for one in found.train:
        guesses = map(str, range(20)) if one.answer.isdigit() else COLORS
        judged = {
            guess: rubric.judge([ScoringRequest(one.fields, Completion(guess))])[0].score
            for guess in guesses
        }
        assert [guess for guess, score in judged.items() if score == 1] == [one.answer]
        assert sum(judged.values()) == 1


@pytest.mark.parametrize("bars", [2, 3])
def test_a_chart_has_no_more_bars_than_allowed(bars):
    found = load(dataclasses.replace(CONFIG, most_bars=bars), 0)
    seen = [len(heights_seen(one.row["images"][0].pixels(), 5)) for one in found.train]
    assert set(seen) == set(range(2, bars + 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"questions": "heighest"}, "task.chart.questions='heighest' is not one of .*; did you me"),
        ({"questions": " "}, "names no question"),
        ({"side_pixels": 20}, "side_pixels=20 is too small for a scale of 10 units: use 21 or mo"),
        ({"most_value": 20}, "task.chart.most_value=20 must be at least 3 and at most 19"),
        ({"most_bars": 5}, "task.chart.most_bars=5 must be at least 2 and at most 4"),
    ],
)
def test_a_config_outside_its_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **fields)
