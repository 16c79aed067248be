"""Handwritten digits: split by seed, as images and as text, and their reward."""

import sys

import pytest

from rl_sync.configs import digits as config_file
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.toy.digits import DigitsConfig, load

pytest.importorskip("sklearn")


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
    assert pixels.shape == (8, 8, 3)
    for line, row in zip(lines, pixels, strict=False):
        for character, (gray, *_) in zip(line, row, strict=True):
            assert (character == ".") == (gray > 255 * 12 / 16)
            assert (character == "#") == (gray < 255 * 4 / 16)


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
