"""Rewards for the form of a completion, with scores computed by hand."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.text_shaping import (
    FormatMatch,
    LanguageShare,
    LengthBand,
    Repetition,
    SoftOverlong,
)

GERMAN = "Wir haben das Ergebnis und es ist nicht die Summe, die wir mit der Formel von oben sehen."
ENGLISH = "We have the result and it is not the sum that we see with the formula from above."


def score(reward, text: str, tokens: int = 0) -> float:
    judged = reward({}, Completion(text, tokens=[1] * tokens))
    assert judged.why
    return judged.score


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>2+2</think><answer>4</answer>", 1),
        (" <think>2+2</think>\n<answer>4</answer>\n", 1),
        ("<think>2+2</think> so <answer>4</answer>", 1),
        ("<answer>4</answer><think>2+2</think>", 0),
        ("<think>2+2<answer>4</answer></think>", 0),
        ("<think>2+2</think>", 0),
        ("<think>2</think><think>2</think><answer>4</answer>", 0),
        ("<think> </think><answer>4</answer>", 0),
        ("</think>2<think><answer>4</answer>", 0),
        ("4", 0),
    ],
)
def test_tags_open_and_close_once_in_order_with_text_inside(text, expected):
    assert score(FormatMatch(tags="think, answer"), text) == expected


def test_what_the_prompt_has_written_belongs_to_the_form():
    def score(text, begun, **tags):
        return FormatMatch(**tags)({}, Completion(text, begun=begun)).score

    both = "think,answer"
    for begun in ("<think>", "<think>\n"):
        assert score("2+2</think><answer>4</answer>", begun, tags=both, only_tags=True) == 1
        assert score("2+2<answer>4</answer>", begun, tags=both) == 0
        assert score("<think>2+2</think><answer>4</answer>", begun, tags=both) == 0
    assert score("2+2</think><answer>4</answer>", "", tags=both) == 0
    assert score("4</answer>", "<answer>", tags="answer") == 1
    assert score("is 4.", "The answer", pattern=r"The answer is \d\.") == 0


def test_text_outside_of_tags_can_be_refused():
    strict = FormatMatch(tags="think,answer", only_tags=True)
    assert score(strict, "<think>a</think>\n<answer>b</answer>") == 1
    for text in ("x<think>a</think><answer>b</answer>", "<think>a</think>x<answer>b</answer>"):
        assert score(strict, text) == 0
    assert score(strict, "<think>a</think><answer>b</answer> x") == 0


def test_a_pattern_matches_the_whole_completion():
    reward = FormatMatch(pattern=r"Answer: \d+.*\.")
    assert score(reward, "Answer: 12\nor so.\n") == 1
    assert score(reward, "The Answer: 12.") == 0


@pytest.mark.parametrize(
    ("length", "expected"),
    [(10, 1), (20, 1), (15, 1), (5, 0.5), (0, 0), (25, 0.5), (30, 0), (99, 0)],
)
def test_lengths_outside_the_band_lose_linearly(length, expected):
    assert score(LengthBand(10, 20, 10), "x", length) == (expected if length else None)
    assert score(LengthBand(10, 20, 10, "words"), "x " * length) == expected
    assert score(LengthBand(10, 20, 10, "characters"), "x" * length) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 0), (600, 0), (800, 0), (850, -0.25), (900, -0.5), (1000, -1), (1001, -1), (5000, -1)],
)
def test_long_completions_are_punished_as_in_dapo(tokens, expected):
    text = "x" if tokens else ""
    assert score(SoftOverlong(max_tokens=1000, cache_tokens=200), text, tokens) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c d e", 1),
        ("a b a b a", 0.5),  # ab, ba, ab, ba: 2 of 4 differ.
        ("a a a a a", 0.25),  # aa four times: 1 of 4 differs.
        ("A a, a! a a", 0.25),
        ("a", 1),
        ("", 1),
    ],
)
def test_repeated_n_grams_cost_their_share(text, expected):
    assert score(Repetition(n=2), text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a" * 500,
        "!" * 500,
        "ab" * 100,
        "好的" * 100,
        "はい、" * 60,
        "สวัสดี" * 50,
        "안녕" * 100,
        "😀" * 99,
    ],
)
def test_repetition_without_spaces_costs_too(text):
    assert score(Repetition(), text) < 0.05


@pytest.mark.parametrize(
    "text",
    [
        "今天天气很好我们去公园散步吧",
        "| a | b |\n|---|---|\n" + "-" * 60,
        "Donaudampfschifffahrt ahoi",
    ],
)
def test_texts_and_lines_of_signs_are_no_repetition(text):
    assert score(Repetition(), text) == 1


def test_a_free_share_of_repetition_costs_nothing():
    assert score(Repetition(n=2, free=0.5), "a b a b a") == 1
    assert score(Repetition(n=2, free=0.5), "a a a a a") == 0.5


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("latin", "abcd", 1),
        ("latin", "abcд", 0.75),
        ("cyrillic", "где", 1),
        ("han", "你好", 1),
        ("japanese", "これは日本語です", 1),
        ("hangul", "안녕", 1),
        ("latin", "12 + 3", 1),
        ("latin", r"так $x + y$ и `code`", 0),
        ("english", ENGLISH, 1),
        ("german", GERMAN, 1),
        ("english", GERMAN, 0),
        ("german", ENGLISH, 0),
        ("english", "four", 1),
        ("english", "четыре", 0),
        ("english", "blub " * 20, 0),
    ],
)
def test_the_language_is_told_by_letters_and_stop_words(name, text, expected):
    assert score(LanguageShare(name), text) == expected


def test_code_and_formulas_do_not_count_as_language():
    assert score(LanguageShare("cyrillic"), r"Итак, $\frac{abc}{def}$ и ```print(x)``` верно") == 1


@pytest.mark.gate
@given(st.text(max_size=300), st.integers(0, 3000))
def test_scores_stay_in_their_ranges(text, tokens):
    for reward in (
        FormatMatch(tags="a"),
        LengthBand(1, 5, 3, "words"),
        Repetition(),
        LanguageShare(),
    ):
        assert 0 <= score(reward, text, tokens) <= 1
    assert -1 <= score(SoftOverlong(2000, 500), text or "x", tokens + 1) <= 0


def test_lengths_in_tokens_are_unknown_without_tokens():
    assert LengthBand()({}, Completion("x")).score is None
    assert SoftOverlong()({}, Completion("x")).score is None


@pytest.mark.parametrize("text", ["a " * 50_000, "$" * 50_000, "`" * 50_001, "<a>" * 20_000])
def test_long_texts_take_little_time(text):
    began = time.process_time()
    for reward in (FormatMatch(tags="a"), LengthBand(unit="words"), Repetition(), LanguageShare()):
        score(reward, text)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: FormatMatch(), "pattern or tags"),
        (lambda: FormatMatch(pattern="("), "pattern"),
        (lambda: FormatMatch(tags="a,a"), "tags"),
        (lambda: FormatMatch(tags="<a>"), "tags"),
        (lambda: FormatMatch(pattern="x", only_tags=True), "only_tags"),
        (lambda: LengthBand(least=5, greatest=4), "least=5"),
        (lambda: LengthBand(margin=0), "margin"),
        (lambda: LengthBand(unit="token"), "tokens"),
        (lambda: SoftOverlong(10, 20), "cache_tokens"),
        (lambda: Repetition(n=0), "n=0"),
        (lambda: Repetition(free=1.0), "free"),
        (lambda: LanguageShare("englisch"), "english"),
    ],
)
def test_impossible_options_are_refused(make, names):
    with pytest.raises(ValueError, match=names):
        make()
