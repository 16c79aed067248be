"""Rewards for short answers about images: scores by hand, sources' formulas, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.rewards.images.visual_answers import (
    Anls,
    Count,
    OptionMatch,
    RelaxedNumber,
    VqaAccuracy,
    levenshtein,
    number_of,
)
from rl_sync.rewards.images.vqa_text import contractions, normalized
from rl_sync.rewards.judgement import Completion


def score(reward, right, text, **fields):
    row = {"answers": right} if isinstance(right, list) else {"answer": right}
    row |= fields
    reward.check(row)
    return reward(row, Completion(text)).score


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("The two dogs.", "2 dogs"),
        ("A man,", "man"),
        ("1,000", "1000"),
        ("3.5", "3.5"),
        ("3.", "3"),
        ("dont know", "don't know"),
        ("shouldntve", "shouldntve"),
        ("shouldnt've", "shouldn't've"),
        ("T-shirt", "t shirt"),
        ("black/white", "black white"),
        ("black / white", "black white"),
        ("none", "0"),
        ("yes\n", "yes"),
        ("ten  men", "10 men"),
        ("the", ""),
    ],
)
def test_answers_are_normalized_as_in_the_challenge(given, expected):
    assert normalized(given) == expected


def test_a_contraction_is_known_by_each_form_that_lacks_one_apostrophe():
    table = contractions()
    assert table["dont"] == "don't"
    assert table["yall'd've"] == table["y'alld've"] == table["y'all'dve"] == "y'all'd've"
    assert "hell" not in table
    assert len(table) == 113


TEN = ["dog"] * 4 + ["puppy"] * 2 + ["Dogs", "cat", "two dogs", "2 dogs"]


@pytest.mark.parametrize(
    ("text", "simple", "official"),
    [
        ("dog", 1, 1),
        ("a dog.", 1, 1),
        ("puppy", 2 / 3, 0.6),
        ("two dogs", 2 / 3, 0.6),
        ("cat", 1 / 3, 0.3),
        ("bird", 0, 0),
    ],
)
def test_three_people_of_ten_make_an_answer_right(text, simple, official):
    assert score(VqaAccuracy(), TEN, text) == pytest.approx(simple)
    assert score(VqaAccuracy(leave_one_out=True), TEN, text) == pytest.approx(official)


def test_three_of_ten_give_nine_tenths_in_the_official_mean():
    three = ["a1"] * 3 + ["b1"] * 7
    assert score(VqaAccuracy(leave_one_out=True), three, "a1") == pytest.approx(0.9)
    assert score(VqaAccuracy(), "yes", "Yes!") == 1


@pytest.mark.parametrize(
    ("right", "text", "expected"),
    [
        ("hello", "hello", 1),
        ("Hello", "hELLO", 1),
        ("hello", "hallo", 0.8),
        ("abcd", "abxx", 0),  # A distance of one half is too far.
        ("abcde", "abcxx", 0.6),
        (["abc", "hello"], "hallo", 0.8),
        ("hello", "completely different and long", 0),
        ("a b", "a  b", 1),
    ],
)
def test_similarity_of_texts_is_one_minus_the_distance_below_a_half(right, text, expected):
    assert score(Anls(), right, text) == pytest.approx(expected)


def test_distances_by_hand():
    assert levenshtein("kitten", "sitting") == 3
    assert levenshtein("", "abc") == levenshtein("abc", "") == 3


@given(st.text("ab", max_size=6), st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_distance_is_a_metric(a, b, c):
    assert levenshtein(a, b) == levenshtein(b, a)
    assert (levenshtein(a, b) == 0) == (a == b)
    assert levenshtein(a, c) <= levenshtein(a, b) + levenshtein(b, c)


@pytest.mark.parametrize(
    ("right", "text", "expected"),
    [
        ("100", "105", 1),
        ("100", "95", 1),
        ("100", "105.1", 0),
        ("-100", "-96", 1),
        ("0", "0.01", 0),
        ("0", "0.0", 1),
        ("5%", "0.05", 1),
        ("5%", "5", 0),
        ("1,234", "$1,240", 1),
        ("Germany", "germany", 1),
        ("Germany", "France", 0),
        ("Germany", "12", 0),
        (["12", "twelve"], "Twelve", 1),
        ("2010", "The answer is 2011.", 1),
    ],
)
def test_numbers_may_be_5_percent_off(right, text, expected):
    assert score(RelaxedNumber(), right, text) == expected


def test_a_tolerance_of_its_own():
    assert score(RelaxedNumber(tolerance=0.0), "100", "101") == 0
    assert score(RelaxedNumber(tolerance=0.0), "100", "100.0") == 1


@pytest.mark.parametrize("text", ["", "1e999", "nan", "inf", "1_000", "9" * 400, "0x10", "1 2"])
def test_other_texts_are_no_numbers(text):
    assert number_of(text) is None


@pytest.mark.parametrize(
    ("right", "text", "expected"),
    [
        ("3", "3", 1),
        (3, "There are 3 cats.", 1),
        ("3", "three", 1),
        ("3", "I see 2 dogs, so the answer is 3.", 1),
        ("3", "4", 0),
        ("3", "13", 0),
        ("3", "3.5", 0),
        ("0", "none", 1),
        ("3", "many", 0),
    ],
)
def test_counts_are_right_or_wrong(right, text, expected):
    assert score(Count(), right, text) == expected


def test_counts_may_give_partial_scores():
    assert [score(Count(partial=True), "4", text) for text in "43519"] == [1, 0.75, 0.75, 0.25, 0]
    assert score(Count(partial=True), "0", "1") == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B", 1),
        ("(b)", 1),
        ("B. a dog", 1),
        ("a dog", 1),
        ("The answer is B.", 1),
        ("A", 0),
        ("a cat", 0),
        ("Bad", 0),
        ("Z", 0),
        ("", 0),
    ],
)
def test_an_option_is_chosen_by_letter_or_text(text, expected):
    options = ["a cat", "a dog"]
    assert score(OptionMatch(), "B", text, choices=options) == expected
    assert score(OptionMatch(), "a dog", text, choices=options) == expected


def test_a_letter_comes_before_a_text_that_looks_like_it_but_not_before_the_same_text():
    assert score(OptionMatch(), "C", "C", choices=["x", "y", "z", "c"]) == 1
    assert score(OptionMatch(), "D", "c", choices=["x", "y", "z", "c"]) == 1
    assert score(OptionMatch(), "A", "C. A", choices=["C", "B", "A"]) == 1
    assert score(OptionMatch(), "A", "A. C", choices=["C", "B", "A"]) == 0


@pytest.mark.parametrize(
    ("reward", "row", "message"),
    [
        (Count(), {"answer": "many"}, r"row\['answer'\]='many' is no number of things"),
        (Count(), {}, r"row\['answer'\] holds None"),
        (Anls(), {"answer": ""}, r"row\['answer'\] is empty"),
        (VqaAccuracy(), {"answers": []}, r"row\['answers'\] is empty"),
        (VqaAccuracy(), {"answers": ["a", {}]}, r"row\['answers'\] holds {}"),
        (OptionMatch(), {"answer": "C", "choices": ["a", "b"]}, r"neither a letter nor one of the"),
        (OptionMatch(), {"answer": "a cat"}, r"neither a letter nor one of the texts"),
        (Anls(), {"answer": "a", "images": ["/no.png"]}, r"row\['images'\]\[0\]: /no.png cannot"),
    ],
)
def test_a_bad_row_is_refused_and_not_judged(reward, row, message):
    with pytest.raises(ValueError, match=message):
        reward.check(row)
    if "images" not in row:
        assert reward(row, Completion("a")).score is None


@pytest.mark.parametrize("reward", [Count(), VqaAccuracy(), Anls(), RelaxedNumber(), OptionMatch()])
def test_very_long_answers_are_wrong(reward):
    assert (
        reward({"answer": "3" if reward != OptionMatch() else "A"}, Completion("3" * 1001)).score
        == 0
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Anls(threshold=0), "threshold=0 must be above 0"),
        (lambda: RelaxedNumber(tolerance=1), "tolerance=1 must be at least 0 and below 1"),
        (lambda: Count(extract="luck"), "extract='luck' is not one of"),
    ],
)
def test_impossible_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
