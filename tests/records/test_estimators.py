"""Estimators against counts by hand, against all subsets, and against many repetitions."""

import itertools

import numpy as np
import pytest

from rl_sync.records.estimators import majority, mean_of, pass_at_k


def test_pass_at_k_is_the_share_of_all_subsets_with_a_solution():
    for n, c in itertools.product(range(1, 7), range(7)):
        if c > n:
            continue
        solved = [i < c for i in range(n)]
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(solved, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_of_more_completions_than_there_are_is_refused():
    with pytest.raises(ValueError, match="pass@3 of 1 among 2 completions"):
        pass_at_k(2, 1, 3)


def test_a_majority_counts_equal_answers_and_shares_a_draw():
    assert majority(["4", "4", "5"], [True, True, False]) == 1.0
    assert majority(["5", "5", "4"], [False, False, True]) == 0.0
    assert majority(["4", "5"], [True, False]) == 0.5
    assert majority(["4", "5", "6", "6", "4"], [True, False, False, False, True]) == 0.5


def test_with_one_completion_a_problem_the_interval_is_wilsons():
    """The example of Newcombe (1998): 81 of 263."""
    values = np.array([1.0] * 81 + [0.0] * 182)
    value, low, high = mean_of(values, 263)
    assert value == pytest.approx(81 / 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_where_all_is_solved_the_interval_does_not_vanish():
    assert mean_of(np.ones(10), 80) == pytest.approx((1.0, 0.7225, 1.0), abs=1e-4)
    assert mean_of(np.zeros(10), 80).high == pytest.approx(0.2775, abs=1e-4)


def test_problems_of_equal_difficulty_count_as_so_many_completions_at_most():
    even = mean_of(np.full(10, 0.5), 40)
    assert even == mean_of(np.array([1.0, 0.0] * 20), 40)


@pytest.mark.parametrize("difficulty", [(0.3, 0.3), (5.0, 5.0), (1.0, 6.0)])
def test_the_interval_covers_the_mean_of_the_population_about_95_times_of_100(difficulty):
    """With 8 completions of each of 60 problems; the completions of one are much alike."""
    rng = np.random.default_rng(0)
    truth, covered, runs = difficulty[0] / sum(difficulty), 0, 2000
    for _ in range(runs):
        values = rng.binomial(8, rng.beta(*difficulty, size=60)) / 8
        _, low, high = mean_of(values, 480)
        covered += low <= truth <= high
    assert 0.93 < covered / runs < 0.97
