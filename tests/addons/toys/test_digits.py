"""Handwritten digits: split by seed, as images and as text, their sums, and their reward."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from rl_sync.addons.toys.digits import DigitsConfig, load
from rl_sync.configs import digits as config_file
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from tests.addons.toys.problem_digest import problem_digest

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(not find_spec("sklearn"), reason="needs scikit-learn"),
]


@pytest.mark.gate
@pytest.mark.parametrize("as_text", [False, True])
def test_all_1797_digits_are_asked_and_an_oracle_gets_1(as_text):
    found = load(DigitsConfig(as_text=as_text), seed=0)
    prompts = [*found.train, *found.held_out]
    assert (len(found.train), len(found.held_out), len(prompts)) == (1400, 397, 1797)
    assert {one.answer for one in prompts} == set("0123456789")
    rubric = Rubric("vision")
    rubric.check(one.fields for one in prompts[:50])
    for shift in (0, 1):
        judged = rubric.judge(
            [
                ScoringRequest(one.fields, Completion(str((int(one.answer) + shift) % 10)))
                for one in prompts
            ]
        )
        assert {one.score for one in judged} == {1.0 - shift}


def test_an_image_is_written_as_characters_that_show_the_ink():
    shown, written = (load(DigitsConfig(as_text=as_text), 0).train[7] for as_text in (False, True))
    lines = written.text.split("\n")
    assert [len(line) for line in lines[:8]] == [8] * 8
    pixels = shown.row["images"][0].pixels()
    assert pixels.shape == (32, 32, 3)
    for line, row in zip(lines, pixels[::4, ::4], strict=False):
        for character, (gray, *_) in zip(line, row, strict=True):
            assert (character == ".") == (gray > 255 * 12 / 16)
            assert (character == "#") == (gray < 255 * 4 / 16)


def test_problems_as_text_stay_the_same():
    assert problem_digest(load(DigitsConfig(as_text=True), 0)) == "cafe14360966604a"


def digits_by_image(found):
    """Returns the digit of each image of one digit, by its bytes at 8 times 8 pixels."""
    return {one.row["images"][0].pixels()[::4, ::4].tobytes(): int(one.answer) for one in found}


@pytest.mark.gate
def test_a_sum_shows_two_digits_of_its_own_part_side_by_side():
    read = load(DigitsConfig(), seed=5)
    sums = load(DigitsConfig(questions="sum", side_pixels=32), seed=5)
    assert (len(sums.train), len(sums.held_out)) == (2000, 397)
    parts = [digits_by_image(part) for part in (read.train, read.held_out)]
    assert not set(parts[0]) & set(parts[1])
    for known, asked in zip(parts, (sums.train, sums.held_out), strict=True):
        for one in asked:
            pixels = one.row["images"][0].pixels()
            assert (pixels[:8] == 255).all()
            assert (pixels[24:] == 255).all()
            halves = pixels[8:24:2, :16:2], pixels[8:24:2, 16::2]
            assert sum(known[half.tobytes()] for half in halves) == int(one.answer)


def test_no_digit_is_much_more_frequent_than_others():
    found = load(DigitsConfig(), seed=0)
    for part, most in ((found.train, 0.12), (found.held_out, 0.14)):
        answers = [one.answer for one in part]
        assert max(answers.count(answer) for answer in set(answers)) / len(answers) < most


def test_sums_are_equally_frequent_and_no_pair_is_asked_twice():
    found = load(DigitsConfig(questions="sum"), seed=0)
    for part in (found.train, found.held_out):
        answers = [one.answer for one in part]
        counts = [answers.count(str(total)) for total in range(19)]
        assert max(counts) - min(counts) <= 1
        assert len({one.row["images"][0].digest for one in part}) == len(part)
    shown = [one.answer for one in found.demonstrations]
    assert {shown.count(str(total)) for total in range(19)} <= {21, 22}


@pytest.mark.gate
def test_both_kinds_are_mixed_and_digits_fill_images_of_any_side():
    found = load(DigitsConfig(questions="read,sum", side_pixels=28), seed=0)
    kinds = [one.row["category"] for one in found.train]
    assert (kinds.count("read"), kinds.count("sum")) == (1400, 2000)
    assert 20 < kinds[:100].count("sum") < 90
    assert [one.prompt_id for one in found.train] == list(range(3400))
    for kind, height in (("read", 24), ("sum", 8)):
        images = [one.row["images"][0] for one in found.train if one.row["category"] == kind]
        ink = np.min([image.pixels() for image in images], (0, 3)) < 255
        assert ink.shape == (28, 28)
        assert np.flatnonzero(ink.any(1)).tolist() == list(
            range(14 - height // 2, 14 + height // 2)
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"questions": "sums"}, "task.digits.questions='sums' is not one of read, sum"),
        ({"questions": ","}, "names no question"),
        ({"questions": "sum", "as_text": True}, "questions=sum asks about images.*as_text=false"),
        ({"side_pixels": 8}, "task.digits.side_pixels=8 must be at least 16"),
    ],
)
def test_a_config_outside_its_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        DigitsConfig(**fields)


def test_more_sums_than_there_are_pairs_are_refused():
    few = DigitsConfig(questions="sum", held_out_problems=19)
    with pytest.raises(
        ValueError, match=r"held_out_sum_problems=397 are more than the \d+ .* 19 d"
    ):
        load(few, 0)


def test_the_seed_decides_what_is_held_out_and_some_answers_are_demonstrated():
    first, again, other = (load(DigitsConfig(as_text=True), seed) for seed in (0, 0, 1))
    assert first == again
    assert first.held_out != other.held_out
    assert len(first.demonstrations) == 280
    for one in first.demonstrations:
        assert one.text == first.train[one.prompt_id].text
    seen = {one.text for one in first.train}
    assert not [one for one in first.held_out if one.text in seen]


def test_a_policy_that_reads_text_alone_is_refused_unless_the_image_is_written_as_text():
    config = config_file.get_config()
    config.workdir = "none"
    assert wiring.load_task(read_settings(config.to_dict())).max_completion_tokens == 2
    config.task.digits.as_text = False
    with pytest.raises(ConfigError, match=r"task.name=digits asks about images.*digits.as_text=tr"):
        wiring.load_task(read_settings(config.to_dict()))


def test_too_many_held_out_and_a_missing_package_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"held_out_problems=1797 leaves none of the 1,797"):
        load(DigitsConfig(held_out_problems=1797), 0)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match=r"digits needs the package scikit-learn.*\[tasks\]"):
        load(DigitsConfig(), 0)
