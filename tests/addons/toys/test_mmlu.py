"""MMLU's example questions, from a file in the form of lm-eval's."""

import importlib.util
import json

import pytest

from rl_sync.addons.toys.mmlu import MmluConfig, load
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest

# Made up in that form: options on one line and on several, and a fifth option.
PHYSICS = """The following are multiple choice questions (with answers) about high school physics.

Q: What falls faster in a vacuum?
(A) a feather (B) a stone (C) neither (D) both
A: Let's think step by step. Without air all fall alike. The answer is (C).

Q: Which of these is a unit of force?
Choose one.
(A) watt
(B) newton
(C) joule
(D) volt
A: Let's think step by step. A force is measured in newtons.
The answer is (B).

"""
SUMS = """The following are multiple choice questions (with answers) about elementary mathematics.

Q: What is 2 + 2?
(A) 3 (B) 5 (C) 6 (D) 7 (E) 4
A: Let's think step by step. 2 + 2 is 4. The answer is (E).
"""
LAW = SUMS.replace("elementary mathematics", "law").replace("2 + 2?", "2 + 2 in court?")


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "questions.json"
    file.write_text(
        json.dumps({"high_school_physics": PHYSICS, "elementary_mathematics": SUMS, "law": LAW})
    )
    return str(file)


def test_questions_have_options_answers_and_workings(path):
    found = load(MmluConfig(path, held_out_problems=1), seed=0)
    prompts = {one.text: one for one in (*found.train, *found.held_out)}
    assert len(prompts) == 3
    fall = prompts["What falls faster in a vacuum?\nA. a feather\nB. a stone\nC. neither\nD. both"]
    assert fall.answer == "C"
    assert fall.row["category"] == "high_school_physics"
    assert fall.row["working"].endswith("Without air all fall alike. The answer is (C).")
    assert any("force?\nChoose one.\nA. watt\nB. newton\nC. joule" in text for text in prompts)
    assert {one.answer for one in prompts.values()} == {"B", "C", "E"}


def test_workings_and_letters_are_right_and_other_letters_wrong(path):
    found = load(MmluConfig(path, "all", held_out_problems=1), seed=0)
    rubric = Rubric(found.reward)
    rubric.check(one.fields for one in found.train)
    for one, shown in zip(found.train, found.demonstrations, strict=True):
        texts = [one.answer, shown.answer, "A"]
        judged = rubric.judge([ScoringRequest(one.fields, Completion(text)) for text in texts])
        assert [each.score for each in judged] == [1.0, 1.0, 0.0]


def test_the_seed_decides_what_is_held_out_and_nothing_is_on_both_sides(path):
    config = MmluConfig(path, "all", held_out_problems=2)
    assert load(config, 0) == load(config, 0)
    assert len({load(config, seed).held_out[0].text for seed in range(8)}) > 1
    found = load(config, 0)
    assert not {one.text for one in found.train} & {one.text for one in found.held_out}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subjects": "high_school_fysics"}, r"'high_school_fysics' is not one of school, all, "),
        ({"subjects": "law"}, r"held_out_problems=1 leaves none of the 1 questions of law"),
        ({"path": "/nowhere.json"}, r"/nowhere.json is not a file of questions.*pip install"),
    ],
)
def test_mistakes_are_refused(path, fields, message):
    with pytest.raises(ValueError, match=message):
        load(MmluConfig(**{"path": path, "held_out_problems": 1, **fields}), 0)


def test_without_the_package_and_a_path_one_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package lm-eval.*pip install --no-deps.*path"):
        load(MmluConfig(), 0)


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_the_real_file_has_282_questions_75_of_them_of_schools():
    for subjects, count in (("all", 282), ("school", 75)):
        found = load(MmluConfig(subjects=subjects), 0)
        assert len(found.train) + len(found.held_out) == count
