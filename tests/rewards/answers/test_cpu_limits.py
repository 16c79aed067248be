"""Limits of time and memory."""

import contextlib
import signal
import sys
import time

import pytest

from rl_sync.rewards.answers import algebra
from rl_sync.rewards.answers.cpu_limits import OutOfTime, within
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.math import MathAnswer


def test_a_computation_returns_its_result_and_raises_its_error():
    assert within(1, 10**9, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(1, 10**9, lambda: 1 / 0)


def test_the_handler_of_before_is_back_after_any_end():
    before = signal.getsignal(signal.SIGALRM)
    for limit_secs, compute in [(1, lambda: 7), (0.05, lambda: time.sleep(5))]:
        with contextlib.suppress(OutOfTime):
            within(limit_secs, 10**9, compute)
        assert signal.getsignal(signal.SIGALRM) is before


def test_a_long_computation_is_interrupted():
    began = time.monotonic()
    with pytest.raises(OutOfTime):
        within(0.1, 10**9, lambda: 9 ** (9**9))
    assert time.monotonic() - began < 5


def test_one_that_swallows_an_exception_is_interrupted_again():
    def stubborn() -> None:
        for _ in range(3):
            try:
                time.sleep(10)
            except BaseException:
                continue
        time.sleep(10)

    began = time.monotonic()
    with pytest.raises(OutOfTime):
        within(0.1, 10**9, stubborn)
    assert time.monotonic() - began < 5


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux")
def test_a_large_computation_has_no_memory_and_later_ones_have_it_again():
    with pytest.raises(MemoryError):
        within(5, 10**8, lambda: len(bytearray(10**9)))
    assert len(bytearray(2 * 10**8)) == 2 * 10**8


def test_time_that_others_have_of_the_machine_is_not_counted():
    def interrupted() -> int:
        time.sleep(0.5)  # As where the processor is another's.
        return 7

    assert within(0.1, 10**9, interrupted) == 7
    with pytest.raises(OutOfTime) as raised:
        within(0.02, 10**9, lambda: time.sleep(20))
    assert not raised.value.is_spent
    with pytest.raises(OutOfTime) as raised:
        within(0.1, 10**9, lambda: 9 ** (9**9))
    assert raised.value.is_spent
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def _judged(monkeypatch, wait_secs, answer, limit_secs):
    """Judges where each comparison has to wait for the processor."""
    compare = algebra._same
    algebra.warm_up()

    def late(*args):
        time.sleep(wait_secs)
        return compare(*args)

    monkeypatch.setattr(algebra, "_same", late)
    reward = MathAnswer(extract="whole", limit_secs=limit_secs)
    return reward({"answer": r"\frac{\sqrt{2}}{2}"}, Completion(answer))


@pytest.mark.gate
def test_a_right_answer_is_right_on_a_busy_machine(monkeypatch):
    judged = _judged(monkeypatch, 1.0, r"\frac{1}{\sqrt{2}}", limit_secs=0.5)
    assert judged.score == 1.0
    assert judged.components == {"limit_spent": 0.0, "machine_busy": 0.0}


@pytest.mark.gate
def test_an_answer_that_got_no_processor_is_unknown_and_one_that_used_it_up_is_wrong(monkeypatch):
    judged = _judged(monkeypatch, 30.0, r"\frac{1}{\sqrt{2}}", limit_secs=0.05)
    assert judged.score is None
    assert "busy" in judged.why
    assert judged.components == {"machine_busy": 1.0}
    monkeypatch.undo()
    judged = MathAnswer(extract="whole", limit_secs=0.3)({"answer": "x+1"}, Completion("9^{9^9} x"))
    assert judged.score == 0.0
    assert judged.components == {"limit_spent": 1.0, "machine_busy": 0.0}


def test_the_first_comparison_of_each_kind_is_warm():
    algebra.warm_up()
    for one, other in [("2x > 6", r"(3, \infty)"), ("x^2 < 9", "-3 < x < 3"), ("x+y=9", "9=y+x")]:
        began = time.process_time()
        assert algebra.equal(one, other, tolerance=0.0, limit_secs=5, memory_bytes=10**9)
        assert time.process_time() - began < 1.0


def test_rows_whose_formula_cannot_be_read_are_refused_before_the_run():
    reward = MathAnswer()
    for answer in (
        r"\frac1x",
        r"\frac{\pi}2",
        "x^2 < 4",
        r"25\pi\text{ cm}^2",
        r"\{x \mid x > 3\}",
    ):
        reward.check({"answer": answer})
    with pytest.raises(ValueError, match=r"cannot be used: .* is not a formula"):
        reward.check({"answer": r"\frac{1}{"})
