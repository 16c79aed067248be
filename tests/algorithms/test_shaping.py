import numpy as np

from rl_sync.algorithms import shaping
from tests.algorithms.compiled import compiled

within_difficulty = compiled(shaping.within_difficulty, "group_size")
without_unjudged = compiled(shaping.without_unjudged, "group_size")
extremes = compiled(shaping.extremes, "group_size", "count")
REWARDS = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])


def test_the_overlong_penalty_falls_to_minus_one_over_the_margin():
    lengths = np.array([0.0, 80.0, 90.0, 100.0])
    penalty = compiled(shaping.soft_overlong_penalty)(lengths, max_tokens=100, margin_tokens=20)
    np.testing.assert_allclose(penalty, [0, 0, -0.5, -1])


def test_groups_without_spread_are_told():
    spread = compiled(shaping.has_spread, "group_size")(REWARDS, 4)
    np.testing.assert_array_equal(spread, [True] * 4 + [False] * 4)


def test_groups_that_are_too_hard_or_too_easy_are_told():
    np.testing.assert_array_equal(
        within_difficulty(REWARDS, 4, 0.25, 0.9), [True] * 4 + [False] * 4
    )
    np.testing.assert_array_equal(within_difficulty(REWARDS, 4, 0.3, 1.0), [False] * 4 + [True] * 4)


def test_the_extremes_are_the_best_and_the_worst():
    rewards = np.array([0.3, 0.9, 0.1, 0.5, 0.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(extremes(rewards, np.ones(8), 4, 2), [0, 1, 1, 0, 1, 0, 0, 1])


def test_what_could_not_be_judged_is_no_extreme():
    rewards = np.array([9.0, 0.3, 0.9, 0.5, 9.0, 0.5, -9.0, -9.0, 1.0, 0.0, 0.0, 0.0])
    lengths = np.array([0, 1, 2, 1, 0, 1, 0, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(
        extremes(rewards, lengths, 4, 2), [0, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0]
    )


def test_what_could_not_be_judged_has_the_mean_of_its_group_s_others():
    rewards = np.array([9.0, 1.0, 0.0, 0.5, 9.0, 9.0, 9.0, 9.0, 0.7, 0.7, 9.0, 0.7], np.float32)
    lengths = np.array([0, 1, 2, 3, 0, 0, 0, 0, 1, 1, 0, 4], np.float32)
    found = without_unjudged(rewards, lengths, 4)
    expected = np.array([0.5, 1, 0, 0.5, 0, 0, 0, 0, 0.7, 0.7, 0.7, 0.7], np.float32)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
