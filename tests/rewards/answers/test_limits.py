"""Limits of time and memory."""

import contextlib
import signal
import sys
import time

import pytest

from rl_sync.rewards.answers.limits import OutOfTime, within


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
