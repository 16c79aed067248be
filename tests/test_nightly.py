"""The nightly tests' parts: all files are in one, and a round of commits covers them."""

from __future__ import annotations

import hashlib
import random

import pytest

from tests import nightly

SECS = {f"tests/test_{number}.py": float(number % 90 + 5) for number in range(100)}


def commits(seed: int, count: int) -> list[str]:
    return [hashlib.sha1(f"{seed} {number}".encode()).hexdigest() for number in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_parts_have_every_file_once_and_are_about_equally_long(seed):
    secs = SECS | {f"tests/more_{n}.py": random.Random(seed + n).uniform(1, 200) for n in range(20)}
    made = nightly.parts(secs)
    assert sorted(name for names in made for name in names) == sorted(secs)
    took = [sum(secs[name] for name in names) / nightly.PROCESSES for names in made]
    assert max(took) <= nightly.PART_SECS * 1.1
    assert max(took) - min(took) <= 100


@pytest.mark.parametrize("seed", range(5))
def test_each_round_of_commits_covers_all_parts(seed):
    count = 10
    history = commits(seed, 40)
    taken = [nightly.part_of(history[: end + 1], count) for end in range(40)]
    for start in range(0, 40, count):
        assert sorted(taken[start : start + count]) == list(range(count))
    assert taken[:count] != taken[count : 2 * count], "the order does not depend on the hash"


def test_a_clone_without_history_takes_the_part_of_its_hash():
    (only,) = commits(0, 1)
    assert nightly.part_of([only], 7) == int(only, 16) % 7


def test_every_file_with_a_nightly_test_is_in_a_part():
    named = nightly.files()
    for name in ("tests/test_wheel.py", "tests/runs/test_conformance.py"):
        assert name in named
    assert "tests/test_schedule.py" not in named
