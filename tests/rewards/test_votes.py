"""Answers that evaluations vote on: equal answers of each reward are one, however written."""

from __future__ import annotations

import pytest

from rl_sync.records.accuracy import JudgedAnswer, Problem, measure
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.reward_catalog import REWARDS
from rl_sync.rewards.rubric import Rubric, ScoringRequest

# By reward: an expression, a row, ways to write the right answer, and wrong answers by meaning.
VOTES = [
    ("exact", "exact", {"answer": "12"}, ["12", " 12\n"], [["7"], ["8", "8 "]]),
    ("final_answer", "final_answer", {"answer": "12"}, ["so # 12", "#12"], [["# 7", "I say # 7"]]),
    ("math", "math", {"answer": "12"}, [r"\boxed{12}", "#### 12.0", r"\boxed{\frac{24}{2}}"],
     [[r"\boxed{7}", "The answer is 7.0."], [r"\boxed{8}"]]),
    ("math", "math", {"answer": r"\frac12"}, [r"\boxed{1/2}", r"\boxed{0.5}", r"\boxed{50\%}",
     r"\boxed{\frac{2}{4}}", r"\boxed{x = \frac12}"],
     [[r"\boxed{0.25}", r"\boxed{\frac14}", r"\boxed{x = 1/4}"], [r"\boxed{2}"]]),
    ("math", "math", {"answer": r"\frac{\sqrt2}{2}"}, [r"\boxed{1/\sqrt{2}}",
     r"\boxed{\frac{\sqrt{2}}{2}}", r"\boxed{\sqrt{1/2}}"],
     [[r"\boxed{\sqrt{3}/3}", r"\boxed{\frac{1}{\sqrt 3}}"], [r"\boxed{2\pi}",
      r"\boxed{\pi + \pi}"],
      [r"\boxed{(x+1)^2}", r"\boxed{x^2+2x+1}"], [r"\boxed{2r}"], [r"\boxed{2R}"]]),
    ("math", "math", {"answer": r"\{1, 2\}"}, [r"\boxed{2, 1}", r"\boxed{\{1,2\}}"],
     [[r"\boxed{\{3, 1\}}", r"\boxed{1, 3}"], [r"\boxed{(2, 1)}"]]),
    ("math", "math", {"answer": "5 cm"}, [r"\boxed{5}", r"\boxed{5\text{ cm}}"],
     [[r"\boxed{5\text{ kg}}"], [r"\boxed{6}"]]),
    ("k12", "k12", {"answer": "1.5 km"}, ["1500 m", "1.5 km", "1.5"], [["15 km", "15,000 m", "15"],
     ["3 h"]]),
    ("k12", "k12", {"choices": ["Rome", "Paris", "Bern"], "answer": "B"}, ["(b)", "B) Paris",
     "Paris", r"\boxed{\text{B}}"], [["A", "Rome", "(A) Rome"], ["C.", "option c"]]),
    ("k12", "k12", {"answer": True}, ["yes", "True.", "T"], [["no", "False, since it is not."]]),
    ("k12", "k12", {"answer": ["light", "1000"]}, ["light, 1,000", "1. light\n2. 1000"],
     [["dark; 1000", "Dark, 1,000"]]),
    ("k12", "k12", {"kind": "order", "answer": ["egg", "larva", "pupa"]}, ["egg, larva, pupa",
     "Egg -> larva -> pupa"], [["larva, egg, pupa", "1. Larva\n2. egg\n3. pupa"]]),
    ("k12", "k12", {"answer": {"1": "B", "2": "A"}}, ["1-B, 2-A", "2: A\n1: B"],
     [["1-A, 2-B", "2: B\n1: A"]]),
    ("k12", "k12", {"answer": "the water cycle"}, ["Water cycle.", "the WATER cycle"],
     [["rock cycle", "The rock cycle!"]]),
    ("choice", "choice", {"choices": ["cat", "dog", "owl"], "answer": "B"}, ["B", "(b)", "dog",
     "B. dog", "Dog."], [["A", "cat", "a)"], ["owl", "C"]]),
    ("count", "count", {"answer": 12}, ["12", "twelve", "There are 12 birds."], [["7", "seven"],
     ["1,000", "1000"]]),
    ("vqa", "vqa", {"answers": ["two dogs"] * 10}, ["2 dogs", "The two dogs."],
     [["a cat", "cat"]]),
    ("anls", "anls", {"answer": "Straße"}, ["straße", " STRAßE "], [["weg", "Weg"]]),
    ("relaxed_number", "relaxed_number", {"answer": "1000"}, ["1,000", "1010", "$990"],
     [["500", "500.0"], ["700"]]),
    ("iou", "iou", {"boxes": [[0, 0, 100, 100], [200, 0, 300, 100]]},
     ["[[0,0,100,100],[200,0,300,100]]", "[200, 1, 300, 100], [0, 0, 101, 100]"],
     [["[[50,50,150,150]]", "[51,50,150,149]"], ["[]"]]),
    ("point_in_box", "point_in_box", {"boxes": [0, 0, 100, 100]}, ["[50, 50]", "(20, 70)"],
     [["[150, 150]", "(151, 149)"], ["[500, 10]"]]),
    ("by_set", "by_set(sums='math', rest='exact')", {"task_set": "sums", "answer": "12"},
     [r"\boxed{12}", "#### 12.0"], [[r"\boxed{7}", "The answer is 7.0."]]),
    ("vision", "vision", {"kind": "count", "answer": 3}, ["3", "three"], [["4", "four"]]),
    ("vision", "vision", {"kind": "box", "boxes": [0, 0, 100, 100]}, ["[0,0,100,100]",
     "[1, 0, 100, 99]"], [["[300,300,400,400]"]]),
]  # fmt: skip
NOTHING = {
    "math": "I do not know.", "final_answer": "12", "count": "many", "choice": "none of them",
    "k12": "", "iou": "no boxes at all", "point_in_box": "left of the dog",
}  # fmt: skip


def _votes(reward, row, texts):
    items = [ScoringRequest({"prompt": "?", **row}, Completion(text)) for text in texts]
    return Rubric(reward).judge(items)


def test_every_reward_says_whether_it_reads_answers_and_those_that_do_are_tried_here():
    assert {name for name, *_ in VOTES} == {
        name for name, kind in REWARDS.items() if kind.has_answers
    }
    for name, kind in REWARDS.items():
        assert isinstance(kind.has_answers, bool), name


@pytest.mark.parametrize(("name", "reward", "row", "right", "wrong"), VOTES)
def test_equal_answers_vote_together(name, reward, row, right, wrong):
    judged = _votes(reward, row, right)
    votes = {one.answer for one in judged}
    assert len(votes) == 1, [(text, one.answer) for text, one in zip(right, judged, strict=True)]
    assert None not in votes
    for alike in wrong:
        judged = _votes(reward, row, alike)
        found = {one.answer for one in judged}
        assert len(found) == 1, [
            (text, one.answer) for text, one in zip(alike, judged, strict=True)
        ]
        assert not found & votes, "other answers are other votes"
        assert None not in found
        votes |= found


@pytest.mark.parametrize("name", NOTHING)
def test_a_completion_without_an_answer_has_no_vote(name):
    row = next(row for one, _, row, *_ in VOTES if one == name)
    (judged,) = _votes(name, row, [NOTHING[name]])
    assert (judged.score, judged.answer) == (0.0, None)


def test_the_majority_of_five_solutions_is_right_where_three_of_them_are():
    texts = [
        rf"{words} \boxed{{{answer}}}"
        for words, answer in [("So", "12"), ("Thus", "12.0"), ("Hence", "24/2"), ("Or", 7), ("", 8)]
    ]
    judged = _votes("math", {"answer": "12"}, texts)
    values = measure(
        [Problem([JudgedAnswer(one.score == 1, one.answer) for one in judged])], samples=5
    )
    assert values["majority@5"] == 1.0
    assert values["mean@5"] == pytest.approx(0.6)


def test_two_right_ones_lose_against_three_equal_wrong_ones_and_silence_has_no_weight():
    def majority(*texts):
        judged = _votes("math", {"answer": "12"}, texts)
        problem = Problem([JudgedAnswer(one.score == 1, one.answer) for one in judged])
        return measure([problem], len(texts))[f"majority@{len(texts)}"]

    assert majority(r"\boxed{12}", r"\boxed{12}", r"\boxed{7}", "so 7.0", r"a \boxed{14/2}") == 0.0
    assert majority(r"\boxed{12}", r"\boxed{12}", "who knows", "who knows", "who knows") == 1.0


def test_where_no_answer_is_read_there_is_no_majority():
    judged = _votes("length_band(greatest=3, unit='words')", {}, ["a b", "a b", "a b c d e"])
    values = measure(
        [Problem([JudgedAnswer(one.score == 1, one.answer) for one in judged])], samples=3
    )
    assert "majority@3" not in values
    assert {"accuracy", "mean@3", "pass@3"} <= values.keys()
