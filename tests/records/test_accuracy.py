import numpy as np
import pytest

from rl_sync.records.accuracy import (
    JudgedAnswer,
    Problem,
    describe_interval,
    describe_parts,
    describe_share,
    measure,
    metric_names,
)
from rl_sync.records.json_lines import plain


def problem(*solved, votes=(), **fields):
    votes = votes or [str(one) for one in solved]
    return Problem(
        [JudgedAnswer(one, vote) for one, vote in zip(solved, votes, strict=True)], **fields
    )


def without_intervals(values):
    return {name: one for name, one in values.items() if "_low" not in name and "_high" not in name}


def test_the_share_of_solved_problems_and_its_interval():
    values = measure([problem(True), problem(True), problem(False), problem(True)])
    assert without_intervals(values) == {"accuracy": 0.75, "problems": 4}
    assert describe_interval(values) == " (95% interval 30.1% to 95.4%)"
    assert describe_parts(values) == ""


def test_what_could_not_be_judged_is_counted_apart():
    values = measure([problem(True), problem(None), problem(False)])
    assert without_intervals(values) == {"accuracy": 0.5, "problems": 2, "unjudged": 1}
    none = measure([problem(None)])
    assert np.isnan([none["accuracy"], none["accuracy_low"], none["accuracy_high"]]).all()
    assert (none["problems"], none["unjudged"]) == (0, 1)
    assert plain(none)["accuracy"] is None
    assert describe_interval(none) == describe_interval(plain(none)) == ""
    assert describe_share(none["accuracy"]) == describe_share(None) == "not judged"
    assert describe_share(0.25) == "25.0%"


def test_graded_scores_are_averaged_for_each_category_and_others_are_not_listed():
    def graded(category, *scores):
        answers = [JudgedAnswer(score == 1, "a", score) for score in scores]
        return Problem([*answers, JudgedAnswer(None)], category=category)

    boxes = [graded("box", 0.5, 1.0), graded("box", 0.0, 0.0)]
    values = measure([*boxes, graded("count", 1.0, 0.0), graded("text", 0.8)], samples=3)
    assert values["score"] == pytest.approx((0.75 + 0 + 0.5 + 0.8) / 4)
    assert values["accuracy"] == pytest.approx((0.5 + 0 + 0.5 + 0) / 4)
    assert values["score/box"] == 0.375
    assert values["accuracy/box"] == 0.25
    assert (values["score/count"], values["score/text"]) == (0.5, 0.8)
    whole = measure([graded("count", 1.0, 0.0), problem(True)])
    assert not [name for name in whole if "score" in name]


def test_problems_that_are_trained_on_too_are_measured_apart():
    seen = [problem(one, is_seen=True) for one in (True, False)]
    values = measure([*seen, *(problem(one) for one in (True, False, False))])
    assert without_intervals(values) == {
        "accuracy": 0.4,
        "problems": 5,
        "accuracy_seen": 0.5,
        "problems_seen": 2,
        "accuracy_unseen": pytest.approx(1 / 3),
        "problems_unseen": 3,
    }
    assert describe_parts(values) == (
        " (50.0% of 2 whose prompts are trained on too, 33.3% of 3 others)"
    )
    assert describe_parts(measure(seen)) == " (50.0% of 2 whose prompts are trained on too)"


def test_several_completions_a_problem_have_a_mean_a_majority_and_pass_at_powers_of_two():
    values = measure(
        [
            problem(True, False, False, False, votes="abcc"),
            problem(True, True, True, False, votes="aaab"),
            problem(False, False, False, False, votes="abcd"),
            problem(True, None, None, True, votes="axxa"),
        ],
        samples=4,
    )
    assert metric_names(4) == ["accuracy", "mean@4", "majority@4", "pass@1", "pass@2", "pass@4"]
    assert metric_names(1) == ["accuracy"]
    assert set(metric_names(4)) <= set(values)
    assert values["accuracy"] == values["mean@4"] == values["pass@1"]
    assert values["mean@4"] == pytest.approx((0.25 + 0.75 + 0 + 1) / 4)
    assert values["majority@4"] == 0.5
    assert values["pass@2"] == pytest.approx((0.5 + 1 + 0 + 1) / 4)
    assert values["pass@4"] == pytest.approx(2 / 3), "three problems have four judged completions"
    assert (values["problems"], values["unjudged"]) == (4, 2)


def test_categories_are_measured_apart():
    values = measure([problem(True, category="sums"), problem(False, category="logic")])
    assert (values["accuracy/sums"], values["accuracy/logic"]) == (1.0, 0.0)
    assert values["problems/sums"] == 1
    assert values["accuracy_low/sums"] < 1.0
