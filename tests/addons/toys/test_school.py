"""School questions: the same by seed in every process, never twice, and right by their reward."""

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from rl_sync.addons.toys import optional_packages, questions
from rl_sync.addons.toys.questions import GENERATORS
from rl_sync.addons.toys.school import SchoolConfig, load
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from tests.tasks import loading

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(not find_spec("reasoning_gym"), reason="needs reasoning_gym"),
]

CONFIG = SchoolConfig(problems=260, held_out_problems=52)
_PRINT = """
import hashlib
from rl_sync.addons.toys.school import SchoolConfig, load
found = load(SchoolConfig(problems=260, held_out_problems=52), 5)
print(hashlib.sha256(repr((found.train, found.held_out)).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def easy():
    return load(CONFIG, seed=5)


@pytest.fixture(scope="module")
def harder():
    return load(dataclasses.replace(CONFIG, difficulty=3), seed=5)


@pytest.mark.gate
def test_about_25_generators_ask_for_numbers_units_truths_and_choices(easy):
    prompts = [*easy.train, *easy.held_out]
    assert {one.row["category"] for one in prompts} == GENERATORS.keys()
    assert {one.row["kind"] for one in prompts} == {"number", "true_false", "choice"}
    assert any(one.answer.endswith(" min") for one in prompts)
    assert 24 <= len(GENERATORS) <= 30


@pytest.mark.parametrize("level", ["easy", "harder"])
def test_right_answers_are_right_and_those_of_other_questions_mostly_wrong(level, request):
    prompts = request.getfixturevalue(level).train
    rubric = Rubric("k12")
    rubric.check(one.fields for one in prompts)
    judged = rubric.judge([ScoringRequest(one.fields, Completion(one.answer)) for one in prompts])
    assert [one.score for one in judged] == [1.0] * len(prompts)
    others = [
        ScoringRequest(one.fields, Completion(other.answer))
        for one, other in zip(prompts, [*prompts[1:], prompts[0]], strict=True)
        if one.answer != other.answer
    ]
    assert sum(one.score for one in rubric.judge(others)) < 0.05 * len(others)


def test_a_question_does_not_hold_its_own_answer_to_repeat(easy):
    rubric = Rubric("k12")
    judged = rubric.judge([ScoringRequest(one.fields, Completion(one.text)) for one in easy.train])
    assert sum(one.score for one in judged) < 0.1 * len(judged)


@pytest.mark.nightly
def test_every_process_makes_the_same_problems_whatever_it_hashes(easy):
    hashes = {
        subprocess.run(
            [sys.executable, "-c", _PRINT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    text = repr((easy.train, easy.held_out))
    assert hashes == {hashlib.sha256(text.encode()).hexdigest()}


def test_the_seed_and_the_difficulty_decide_and_no_question_is_asked_twice(easy, harder):
    assert easy.train != load(CONFIG, seed=6).train
    for found in (easy, harder):
        texts = [one.text for one in (*found.train, *found.held_out)]
        assert len(set(texts)) == len(texts)
        assert [one.prompt_id for one in found.train] == list(range(len(found.train)))
    sums = [
        max(len(p.text) for p in f.train if p.row["category"] == "chain_sum")
        for f in (easy, harder)
    ]
    assert sums[0] < sums[1]


def test_a_generator_with_few_questions_is_noted():
    found = load(dataclasses.replace(CONFIG, generators="coin_flip, lcm"), seed=0)
    assert any(note.startswith("coin_flip has only") for note in found.notes)
    with pytest.raises(ValueError, match=r"held_out_problems=52 leaves none of the \d+ different"):
        load(dataclasses.replace(CONFIG, generators="coin_flip"), seed=0)


def test_options_of_a_generator_go_before_those_of_the_difficulty():
    source = "chain_sum(min_digits=2, max_digits=2, max_terms=2), lcm"
    found = load(dataclasses.replace(CONFIG, generators=source), seed=0)
    sums = [one.text for one in found.train if one.row["category"] == "chain_sum"]
    assert len(sums) > 50
    assert all(re.search(r": \d\d [+-] \d\d =$", text) for text in sums)
    for wrong in ("nope=2", "min_digits=3"):
        with pytest.raises(
            ValueError, match=rf"chain_sum cannot .*{wrong[:4]}.* max_digits, allow"
        ):
            load(dataclasses.replace(CONFIG, generators=f"chain_sum({wrong})"), seed=0)


def test_the_task_loads_with_tokens_of_characters():
    task = loading.load(
        name="school",
        school__generators="chain_sum",
        school__problems=50,
        school__held_out_problems=10,
    )
    assert task.reward == "k12"
    assert len(task.demonstrations) == 50
    assert not any(map(task.is_seen, task.held_out))


def test_without_the_package_one_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"school needs the package reasoning-gym.*\[tasks\]"):
        load(CONFIG, seed=0)
    assert optional_packages.WAY_OUT.count("pip install") == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"generators": "lcd"}, r"task.school.generators='lcd' is not one of all, .* 'lcm'"),
        ({"generators": "lcm,lcm"}, "must name generators, each once"),
        ({"generators": ""}, "separated by commas"),
        ({"generators": "all, gcd"}, "`all` stands alone, without options"),
        ({"generators": "all(min_terms=2)"}, "`all` stands alone, without options"),
    ],
)
def test_a_config_outside_its_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SchoolConfig(**fields)


def _entry(question, answer, **metadata):
    return {"question": question, "answer": answer, "metadata": metadata}


def test_answers_become_numbers_units_and_options():
    asked = questions.denominator(
        _entry("", "", numerator=4, denominator=6, simplified_denominator=3)
    )
    assert (asked.answer, asked.kind) == ("3", "number")
    assert "4/6" in asked.text
    assert questions.largest_factor(_entry("", "2 × 3 × 7")).text.startswith(
        "What is the largest prime number that divides 42"
    )
    minutes = questions.duration(
        _entry("A call began at 09:30 and ended at 11:00. How long? Answer in HH:MM.", "01:30")
    )
    assert minutes.answer == "90 min"
    assert minutes.text.endswith("How long? Answer in minutes.")
    seconds = questions.duration(
        _entry("From 09:30:00 to 09:31:05? Give your answer in HH:MM:SS.", "00:01:05")
    )
    assert seconds.answer == "65 s"
    day = questions.calendar(_entry("Which day?", "Tuesday"))
    assert (day.answer, day.kind, day.choices[1]) == ("B", "choice", "Tuesday")
    assert "\nB. Tuesday\n" in day.text
    assert questions.calendar(_entry("Leap?", "No")).answer == "false"
    assert questions.calendar(_entry("How many?", "12")).answer == "12"


def test_entries_that_cannot_be_asked_are_left_out():
    midnight = "From 23:30 to 00:00. Answer in HH:MM."
    assert questions.duration(_entry(midnight, "-24:30")) is None
    assert questions.relative(_entry("How?", "niece")) is None
    assert questions.number(_entry("How many?", "import os")) is None
    assert questions.truth(_entry("Is it?", "perhaps")) is None
