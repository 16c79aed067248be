"""Rubrics: weighted sums of rewards of every shape."""

import time

import numpy as np
import pytest

from rl_sync.rewards.judgement import Completion, Judgement
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from tests.rewards import own

OWN = "tests.rewards.own"


def items(*texts, **fields):
    row = {"prompt": "p", "answer": "2", **fields}
    return [ScoringRequest(row, Completion(text, tokens=range(len(text)))) for text in texts]


def scores(reward, *texts, **fields):
    return [one.score for one in Rubric(reward).judge(items(*texts, **fields))]


def test_a_sum_weighs_its_terms_and_keeps_each_as_a_component():
    rubric = Rubric(f"exact + 0.5 * final_answer(marker='#') - 0.25 * {OWN}:tokens")
    two, marked = rubric.judge(items("2", "#2"))
    assert (two.score, marked.score) == (1 - 0.25, 0.5 - 0.5)
    assert two.components == {"exact": 1.0, "final_answer": 0.0, "tokens": 1.0}
    assert two.why == "exact: the same text; final_answer: no '#'"


def test_a_reward_of_any_shape_is_called_with_what_its_arguments_ask_for():
    assert scores(f"{OWN}:batch", "a", "b", "c") == [3.0, 3.0, 3.0]
    assert scores(f"{OWN}:scaled(factor=3)", "2") == [6.0]
    assert scores(f"{OWN}:patient_batch", "a", "b") == [0.5, 0.5]
    assert scores(own.tokens, "abc") == [3.0]
    judged = Rubric(f"2 * {OWN}:Threshold(least=3)").judge(items("x", size=3))
    assert judged == [Judgement(2.0, "3", {"Threshold": 1.0, "Threshold/raw": 3})]


def test_asynchronous_rewards_wait_side_by_side_each_with_its_own_clock():
    start = time.perf_counter()
    judged = Rubric(f"{OWN}:patient").judge(items(*["0.2"] * 20, "30"), limit_secs=1.0)
    assert time.perf_counter() - start < 3
    assert [one.score for one in judged] == [1.0] * 20 + [None]
    assert judged[-1].why == "patient took longer than 1 s"


def test_numbers_of_numpy_are_scores():
    assert scores(lambda row, completion: np.float32(0.5), "x") == [0.5]
    assert scores(lambda row, completion: np.array([True]), "x") == [1.0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise", r"hostile failed with KeyError: 'a field' \(.*own.py, line \d+\)"),
        (
            "nan",
            "hostile cannot be used: A reward must return finite numbers, and its score is nan",
        ),
        ("text", "it returned '1.0', not a number or a Judgement"),
        ("nothing", r"it returned None, .* Judgement.unknown\(why\) gives no score"),
    ],
)
def test_what_is_no_judgement_is_never_a_score(text, why):
    (judged,) = Rubric(f"exact + {OWN}:hostile").judge(items(text))
    assert judged.score is None
    assert pytest.importorskip("re").search(why, judged.why)
    assert judged.components == {"exact": 0.0}


def test_a_batch_of_another_length_is_not_judged():
    assert scores(f"{OWN}:short_batch", "a", "b") == [None, None]


def test_equal_names_are_numbered_in_metrics():
    assert Rubric(f"exact + {OWN}:scaled + 2*{OWN}:scaled").labels == [
        "exact",
        "scaled",
        "scaled_2",
    ]


def test_rows_are_checked_before_a_run():
    rubric = Rubric(f"exact + {OWN}:Threshold")
    rubric.check([{"prompt": "a", "answer": "1", "size": 1}])
    with pytest.raises(
        ValueError, match=r"reward Threshold cannot judge problem 2 \('b'\): there is no 'size'"
    ):
        rubric.check([{"prompt": "a", "answer": "1", "size": 1}, {"prompt": "b", "answer": "1"}])


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("exakt", r"task.reward='exakt' is not one of exact, .*; did you mean 'exact'\?"),
        ("exact(case=False)", "The reward exact has no option 'case': it has thoughts"),
        (
            "final_answer(marke='#')",
            r"no option 'marke': it has marker, thoughts; did you mean",
        ),
        ("final_answer(marker='')", "The reward final_answer cannot be made: .*marker is empty"),
        ("exact(thoughts=3)", "The reward exact has thoughts=3: write thoughts=True for the whole"),
        (f"{OWN}:alone", "The reward alone takes row, and must take .row, completion."),
        (f"{OWN}:missing", "tests.rewards.own has no 'missing'"),
    ],
)
def test_a_reward_that_cannot_be_made_is_refused(reward, message):
    with pytest.raises(ValueError, match=message):
        Rubric(reward)


THOUGHT = "<think>maybe 3?</think>\n4"


@pytest.mark.parametrize(
    ("reward", "right"),
    [
        ("exact", 1.0),
        ("exact(thoughts=False)", 1.0),
        ("exact(thoughts=True)", 0.0),
        ("final_answer(marker='>', thoughts=True)", 1.0),
        ("by_set(all='exact')", 1.0),
        ("by_set(all='exact(thoughts=True)')", 0.0),
        ("length_band(greatest=1, margin=10, unit='words')", 0.8),
        ("length_band(greatest=1, margin=10, unit='words', thoughts=False)", 1.0),
        ("format(tags='think')", 1.0),
        ("format(tags='think', thoughts=False)", 0.0),
        (f"{OWN}:scaled", 4.0),
        (f"{OWN}:scaled(factor=2, thoughts=False)", 8.0),
        (f"{OWN}:scaled(thoughts=True)", None),
        (f"{OWN}:thoughtful(thoughts=2)", 2.0),
    ],
)
def test_a_reward_reads_the_answer_unless_it_asks_for_the_thoughts(reward, right):
    request = ScoringRequest({"answer": "4", "task_set": "all"}, Completion(THOUGHT))
    (judged,) = Rubric(reward).judge([request])
    assert judged.score == pytest.approx(right)


SCHOOL = {"choices": ["Rome", "Paris", "Berlin", "Madrid"], "answer": "B"}
PROGRAM = {"tests": "assert double(4) == 8", "answer": ""}
WRONG = "```python\ndef double(x):\n    return x\n```"
RIGHT = "```python\ndef double(x):\n    return 2 * x\n```"


@pytest.mark.parametrize(
    ("reward", "row", "wrong", "right"),
    [
        ("math", {"answer": "4"}, "First \\boxed{3}. No.", "The answer is 4."),
        ("k12", SCHOOL, "\\boxed{A}? no", "Answer: B"),
        ("choice", SCHOOL, "\\boxed{A}? no", "Answer: B"),
        ("final_answer", {"answer": "4"}, "4 # 3", "# 4"),
        ("exact", {"answer": "4"}, "3", "4"),
        ("iou", {"boxes": [0, 0, 10, 10]}, "[90, 90, 95, 95]", "[0, 0, 10, 10]"),
        ("point_in_box", {"boxes": [0, 0, 10, 10]}, "(90, 90)", "(5, 5)"),
        ("count", {"answer": "4"}, "There are 3.", "There are 4."),
        pytest.param("code", PROGRAM, WRONG, RIGHT, marks=pytest.mark.gate),
    ],
)
def test_answers_are_never_read_from_thoughts(reward, row, wrong, right, subtests):
    rubric = Rubric(reward)

    def score(reply, begun=""):
        completion = Completion(reply, truncated="</think>" not in reply, begun=begun)
        (judged,) = rubric.judge([ScoringRequest({"prompt": "?", **row}, completion)])
        return judged.score

    with subtests.test("after thoughts"):
        assert score(f"<think>{wrong}</think>\n{right}") == 1
        assert score(f"<think>{right}</think>\n{wrong}") < 1
    with subtests.test("after thoughts that the prompt has begun"):
        assert score(f"{wrong}\n</think>\n\n{right}", "<think>\n") == 1
        assert score(f"{wrong}\n</think>\n\n{right}") == 1
    with subtests.test("cut inside thoughts"):
        assert score(f"<think>{right}") == 0
        assert score(f"{right} Wait,", "<think>\n") == 0
