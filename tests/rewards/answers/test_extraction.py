"""Answers found in completions."""

import time

import pytest

from rl_sync.rewards.answers.extraction import (
    DEFAULT_STRATEGIES,
    extract,
    gold_answer,
    strategies_of,
)

FOUND = [
    (r"So \boxed{7}.", "7", "boxed"),
    (r"\boxed{1} and then \boxed{2}", "2", "boxed"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed"),
    (r"\boxed{\text{a {nested} text}}", r"\text{a {nested} text}", "boxed"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "boxed"),
    (r"$\boxed 7$", "7", "boxed"),
    (r"\fbox{7}", "7", "boxed"),
    (r"\boxed{}", "", "boxed"),
    ("<think>3</think><answer> 7 </answer>", "7", "tags"),
    ("<answer>1</answer> no, <answer>2\n</answer>", "2", "tags"),
    ("so it is\n#### 1,234\n", "1,234", "hashes"),
    ("#### 1\n#### 2", "2", "hashes"),
    ("The answer is 7.", "7", "answer_is"),
    ("The answer is $5.50.", "$5.50", "answer_is"),
    ("The final answer is: 7 because 3 + 4 = 7.", "7", "answer_is"),
    ("**Answer:** 42", "42", "answer_is"),
    ("Answer:\n12", "12", "answer_is"),
    ("The answer is 1. Wait. The answer is 2. Done", "2", "answer_is"),
    ("3 apples and 4 pears make 7 fruits", "7", "last_number"),
    ("it costs $1,234.50 in all", "$1,234.50", "last_number"),
    ("about 12.5% of them", "12.5%", "last_number"),
    (r"we get \frac{3}{4} of it", r"\frac{3}{4}", "last_number"),
    ("half is 1/2, then", "1/2", "last_number"),
    ("it is -3", "-3", "last_number"),
    ("we have 5-3", "3", "last_number"),
]
"""Texts, their answers, and the strategies that find these."""


def test_the_last_answer_of_the_first_successful_strategy_is_found(subtests):
    for text, answer, strategy in FOUND:
        with subtests.test(text):
            assert extract(text, strategies_of(DEFAULT_STRATEGIES)) == (answer, strategy)


def test_an_unclosed_box_is_no_answer():
    assert extract(r"\boxed{1}, so \boxed{2", ["boxed"]) == ("1", "boxed")
    assert extract(r"so \boxed{\frac{1}{2", ["boxed"]) is None


def test_a_text_without_an_answer_has_none():
    assert extract("I do not know", strategies_of(DEFAULT_STRATEGIES)) is None


def test_a_truncated_completion_has_only_answers_whose_end_is_marked():
    names = strategies_of(DEFAULT_STRATEGIES)
    for text in ("#### 12", "The answer is 12", "so 12"):
        assert extract(text, names, truncated=True) is None
    assert extract(r"\boxed{12} and", names, truncated=True) == ("12", "boxed")
    assert extract("<answer>12</answer>", names, truncated=True) == ("12", "tags")


def test_the_order_of_strategies_is_the_option():
    text = r"<answer>1</answer> \boxed{2}"
    assert extract(text, strategies_of("tags, boxed")) == ("1", "tags")
    assert extract(text, strategies_of("boxed,tags")) == ("2", "boxed")


@pytest.mark.parametrize("names", ["", " , ", "boxd"])
def test_unknown_or_no_strategies_are_refused(names):
    with pytest.raises(ValueError, match="extract="):
        strategies_of(names)


def test_the_answer_of_a_worked_solution_is_taken():
    assert gold_answer("3 + 4 = 7\n#### 7") == "7"
    assert gold_answer(r"Thus $x = \boxed{\frac12}$.") == r"\frac12"
    assert gold_answer(" 1 and 2 ") == "1 and 2"


@pytest.mark.parametrize(
    "text",
    [
        "9" * 200_000,
        "1," * 100_000,
        r"\boxed{" * 2_000,
        "answer is " * 20_000,
        "answer is correct " * 10_000,
        "<answer>" * 5_000,
        "**a " * 20_000,
        "#### a\n" * 10_000,
        r"\(" * 20_000,
    ],
)
def test_long_texts_take_little_time(text):
    began = time.process_time()
    extract(text, strategies_of(DEFAULT_STRATEGIES))
    assert time.process_time() - began < 2
