"""Comparison of values: the order of two answers, and the use of algebra."""

import itertools

import pytest

from rl_sync.rewards.answers.answer_comparison import needs_algebra, same_value
from rl_sync.rewards.answers.answer_values import value

TEXTS = ["x>3", "(3, \\infty)", "x+1", "5", "\\{1, y\\}", "2y, 1", "x = 2y", "[1,2) \\cup (3,4)"]


def asked(*pair: str) -> list[tuple[str, ...]]:
    """Returns the pairs of formulas that algebra is asked about."""
    calls: list[tuple[str, ...]] = []
    same_value(*map(value, pair), 0.0, lambda *texts: bool(calls.append(texts)))
    return sorted(calls)


def test_algebra_gets_the_same_formulas_whichever_answer_is_first(subtests):
    for one, other in itertools.combinations(TEXTS, 2):
        with subtests.test(f"{one} and {other}"):
            assert asked(one, other) == asked(other, one)


@pytest.mark.parametrize(
    ("one", "other"), [("(1, 2)", "(1, 3)"), ("5", "6"), ("A", "x+1"), ("Monday", "x")]
)
def test_algebra_is_not_asked_where_values_decide(one, other):
    def never(*texts: str) -> bool:
        raise AssertionError(texts)

    assert not same_value(value(one), value(other), 0.0, never)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", False),
        ("(1/2, 3)", False),
        ("(-\\infty, 3]", False),
        ("Monday", False),
        ("A", False),
        ("x", False),
        ("\\sqrt{2}", True),
        ("x = 2y", True),
        ("(1, \\pi)", True),
        ("x > 3", True),
    ],
)
def test_right_answers_that_are_formulas_need_algebra(text, expected):
    assert needs_algebra(value(text)) == expected
