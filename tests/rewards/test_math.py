"""The reward for mathematics: its table of pairs, notations of numbers, limits and refusals."""

from __future__ import annotations

import dataclasses
import math
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.rewards.answers import algebra
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.math import MathAnswer

ROOT = Path(__file__).parents[2]
PAIRS = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent / "data" / "math_pairs.tsv").read_text().splitlines()[1:]
    if not line.startswith("# ")
]
REPLIES = [
    (verdict, gold, reply.replace("⏎", "\n"))
    for line in (Path(__file__).parent / "data" / "math_replies.tsv").read_text().splitlines()[1:]
    if not line.startswith("# ")
    for verdict, gold, reply in [line.split("\t")]
]
WHOLE = MathAnswer(extract="whole")


def judge(gold: object, answer: str, reward: MathAnswer = WHOLE):
    return reward({"answer": gold}, Completion(answer))


def test_the_table_has_many_pairs_and_none_twice():
    assert len(PAIRS) == len({pair[1:3] for pair in PAIRS}) >= 200
    assert {pair[0] for pair in PAIRS} == {"equal", "different"}


@pytest.mark.gate
def test_pairs_are_judged_as_the_table_says_in_both_directions(subtests):
    for verdict, gold, answer, comment in PAIRS:
        with subtests.test(f"{gold} | {answer}"):
            judged = judge(gold, answer)
            assert judged.score == (verdict == "equal"), (comment, judged.why)
            turned = judge(answer, gold)
            # A text that means nothing is a wrong answer, and not a right answer to compare with.
            either = {0.0, None} if judged.score == 0.0 else {judged.score}
            assert turned.score in either, turned.why
            if turned.score is None:
                assert "cannot be used" in turned.why


@pytest.mark.gate
def test_answers_in_replies_are_found_and_judged_as_the_table_says(subtests):
    assert len(REPLIES) == len(set(REPLIES)) >= 300
    assert {verdict for verdict, _, _ in REPLIES} == {"right", "wrong"}
    for verdict, gold, reply in REPLIES:
        with subtests.test(f"{gold} | {reply}"):
            judged = judge(gold, reply, MathAnswer())
            assert judged.score == (verdict == "right"), judged.why


NUMBERS = st.builds(Fraction, st.integers(-(10**7), 10**7), st.sampled_from([1, 2, 4, 5, 8, 10]))


def notations(value: Fraction) -> list[str]:
    """Writes a number with a finite decimal in many ways."""
    sign, size = "-" * (value < 0), abs(value)
    top, bottom = size.numerator, size.denominator
    places = 3
    scaled = int(size * 10**places)
    decimal = f"{scaled // 1000}.{scaled % 1000:03d}"
    whole, rest = divmod(top, bottom)
    written = [
        f"{sign}{top}/{bottom}",
        rf"{sign}\frac{{{top}}}{{{bottom}}}",
        rf"\frac{{{sign}{top}}}{{{bottom}}}",
        sign + decimal,
        f"{sign}{scaled // 1000:,}.{scaled % 1000:03d}",
        f"{sign}{scaled}e-3",
        rf"{sign}{scaled} \times 10^{{-3}}",
        f"{sign}{scaled // 10}.{scaled % 10}%",
        f"{sign}${decimal}",
        rf"{sign}{decimal} \text{{ apples}}",
        f"x = {sign}{decimal}",
        f"${sign}{decimal}$.",
    ]
    if rest and whole:
        written += [f"{sign}{whole} {rest}/{bottom}", rf"{sign}{whole}\frac{{{rest}}}{{{bottom}}}"]
    return written


@settings(max_examples=150, deadline=None)
@given(NUMBERS, st.data())
def test_a_number_equals_itself_in_any_notation_and_no_other(value, data):
    one, other = (data.draw(st.sampled_from(notations(value))) for _ in range(2))
    assert judge(one, other).score == 1.0, (one, other)
    near = value + data.draw(st.sampled_from([Fraction(1, 1000), Fraction(-1), Fraction(10**6)]))
    assert judge(one, data.draw(st.sampled_from(notations(near)))).score == 0.0


PIECES = st.sampled_from(
    [*"0123456789 .,:;/%$()[]{}|^_=+-*<>xABe°√½²", r"\frac", r"\text{ m}", r"\cup", r"\pm", r"\{",
     r"\}", r"\sqrt", r"\infty", r"\left", " and ", "10^", r"\overline{", r"\begin{pmatrix}", "&",
     r"\\\\", r"\end{pmatrix}", "million", "pm", "cm", r"\in", r"\approx", "_2", "\n"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=14), st.lists(PIECES, min_size=1, max_size=14))
def test_any_text_is_judged_equal_to_itself_and_alike_in_both_directions(one, other):
    plain = dataclasses.replace(WHOLE, symbolic=False)
    one, other = "".join(one), "".join(other)
    if one.strip() and other.strip():
        judged = judge(one, other, plain).score
        assert judged in {0.0, 1.0}
        assert judge(other, one, plain).score == judged
        assert judge(one, one, plain).score == 1.0


def test_numbers_within_the_tolerance_are_equal_and_no_others():
    close = dataclasses.replace(WHOLE, tolerance=1e-3)
    assert judge("1/3", "0.3333", close).score == 1.0
    assert judge("1/3", "0.33", close).score == 0.0
    assert judge(r"\sqrt{2}", "1.4142", close).score == 1.0
    assert judge(r"\sqrt{2}", "1.41", close).score == 0.0
    assert judge("(1/3, 2)", "(0.3333, 2.0001)", close).score == 1.0
    assert judge("0", "0.0001", close).score == 0.0


def test_without_algebra_formulas_are_equal_only_if_written_alike():
    plain = dataclasses.replace(WHOLE, symbolic=False)
    assert judge("132", "47+85").score == 1.0
    assert judge("132", "47+85", plain).score == 0.0
    assert judge("x^2+1", "x^{2} + 1", plain).score == 1.0
    assert judge("x^2+1", "1+x^2", plain).score == 0.0


def test_the_reason_names_the_answer_its_source_the_gold_answer_and_the_path():
    reward = MathAnswer()
    judged = reward({"answer": "7"}, Completion(r"so \boxed{8}"))
    assert judged.why == "'8' (boxed) against '7': not equal by values"
    judged = reward({"answer": "x+1"}, Completion("The answer is 1+x."))
    assert judged.why == "'1+x' (answer_is) against 'x+1': equal by math-verify"


def test_a_completion_without_an_answer_is_wrong_and_not_unknown():
    reward = MathAnswer()
    assert reward({"answer": "7"}, Completion("no idea")).score == 0.0
    assert reward({"answer": "7"}, Completion(r"\boxed{}")).score == 0.0
    assert reward({"answer": "7"}, Completion("so 7", truncated=True)).score == 0.0
    long = reward({"answer": "7"}, Completion(r"\boxed{" + "7" * 1001 + "}"))
    assert long.score == 0.0
    assert "1,001 characters" in long.why


@pytest.mark.parametrize(
    "row", [{}, {"answer": None}, {"answer": ""}, {"answer": "7" * 1001}, {"answer": ["7"]}]
)
def test_a_row_without_a_right_answer_is_refused_and_its_completions_are_unknown(row):
    with pytest.raises(ValueError, match=r"row\['answer'\]"):
        MathAnswer().check(row)
    assert MathAnswer()(row, Completion(r"\boxed{7}")).score is None


def test_numbers_and_worked_solutions_are_right_answers():
    MathAnswer().check({"answer": 7})
    assert judge(7, "7").score == judge(0.5, "1/2").score == 1.0
    assert judge("3 + 4 = 7\n#### 7", "7").score == 1.0
    assert MathAnswer(field="gold")({"gold": "7"}, Completion("7")).score == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"extract": "box"},
        {"tolerance": -1.0},
        {"tolerance": 1.0},
        {"tolerance": math.nan},
        {"limit_secs": 0.0},
        {"memory_mb": math.inf},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        MathAnswer(**options)


@pytest.mark.gate
@pytest.mark.parametrize("answer", ["9^{9^9}", "10000000!", "(" * 400 + "9" + ")" * 400])
def test_answers_that_cost_minutes_cost_their_limit_and_are_wrong(answer):
    assert judge("x+1", "1+x").score == 1.0  # Imports are not the answer's time.
    reward = dataclasses.replace(WHOLE, limit_secs=0.5)
    began = time.monotonic()
    judged = judge("9", answer, reward)
    assert time.monotonic() - began < 5
    assert judged.score == 0.0
    assert "not" in judged.why


def test_many_terms_are_refused_by_their_length():
    judged = judge("9", "+".join(["x"] * 20_000))
    assert (judged.score, "characters" in judged.why) == (0.0, True)


def test_a_right_answer_that_cannot_be_computed_leaves_the_completion_unknown():
    judged = judge("9^{9^9}", "x + 1", dataclasses.replace(WHOLE, limit_secs=0.3))
    assert judged.score is None
    assert "row['answer']" in judged.why


def test_the_timer_of_before_goes_on():
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    old = signal.setitimer(signal.ITIMER_REAL, 30)
    try:
        assert judge("x+1", "1+x").score == 1.0
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 30
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *old)
    assert not calls


def test_where_algebra_cannot_be_interrupted_the_completion_is_unknown():
    found = []
    thread = threading.Thread(target=lambda: found.append(judge("x+1", "1+x")))
    thread.start()
    thread.join()
    assert found[0].score is None
    assert "main thread" in found[0].why


def test_without_math_verify_formulas_are_unknown_and_their_rows_are_refused(monkeypatch):
    monkeypatch.setattr(algebra, "is_installed", lambda: False)
    algebra._load.cache_clear()
    try:
        assert judge("1/2", "0.5").score == 1.0
        judged = judge("x+1", "1+x")
        assert judged.score is None
        assert 'pip install "rl_sync[math]"' in judged.why
        WHOLE.check({"answer": "(1/2, 3)"})
        with pytest.raises(ValueError, match=r'pip install "rl_sync\[math\]"'):
            WHOLE.check({"answer": r"\sqrt{2}"})
        dataclasses.replace(WHOLE, symbolic=False).check({"answer": r"\sqrt{2}"})
    finally:
        algebra._load.cache_clear()


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux")
def test_memory_stays_bounded():
    script = """
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.math import MathAnswer
reward = MathAnswer(extract="whole", memory_mb=200, limit_secs=1)
for answer in ("2^{10000000000}", "9^{9^9}", "(x+y+z)^{2000} - 1"):
    judged = reward({"answer": "x"}, Completion(answer))
    assert judged.score == 0.0, judged
(peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak.split()[1]) // 1024)
assert reward({"answer": "x+1"}, Completion("1+x")).score == 1.0
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 600


def test_importing_the_reward_imports_neither_jax_nor_sympy():
    script = (
        "import sys, rl_sync.rewards.math as m; m.MathAnswer();"
        " print({'jax', 'sympy', 'math_verify', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
