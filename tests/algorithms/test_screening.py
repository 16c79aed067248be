import dataclasses

import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.algorithms.screening import (
    NO_SCREENING,
    NO_SPREAD,
    TOO_EASY,
    TOO_HARD,
    UNBOUNDED,
    Screening,
    choose,
    filter_values,
)


@pytest.mark.parametrize(
    ("rewards", "fault"),
    [
        ((0.0, 1.0, 0.0, 0.0), None),
        ((1.0, 1.0, 1.0, 1.0), TOO_EASY),
        ((0.5, 0.5, 0.5, 0.5), NO_SPREAD),
        ((0.0, 0.0, 0.0, 0.4), TOO_HARD),
        ((0.0, 0.8, 0.0, 0.0), None),
    ],
)
def test_a_group_without_spread_or_outside_the_bounds_teaches_nothing(rewards, fault):
    assert Screening(True, 0.2, 0.9, 4).fault(rewards) == fault
    assert NO_SCREENING.fault(rewards) is None


@pytest.mark.parametrize("reward", [0.1, 0.7, 99.9])
@pytest.mark.parametrize("size", [3, 7, 8])
def test_rewards_of_a_bound_are_within_it(reward, size):
    """Rewards are float32 numbers; 0.7 is 0.69999999 among them."""
    rewards = np.full(size, reward, np.float32).tolist()
    assert Screening(False, reward, reward, 4).fault(rewards) is None
    assert Screening(False, reward, reward, 4).fault([reward] * size) is None


def test_dapo_replaces_groups_without_spread_and_grpo_replaces_none():
    dapo, grpo = ALGORITHMS["dapo"].screening, ALGORITHMS["grpo"].screening
    assert dapo == Screening(True, -UNBOUNDED, UNBOUNDED, 10)
    assert dapo.replaces
    assert dapo.refuses
    assert not grpo.replaces
    assert not grpo.refuses


@pytest.mark.parametrize("bound", [{"group_mean_low": 0.1}, {"group_mean_high": 0.9}])
def test_bounds_of_the_mean_ask_for_spread_where_a_group_is_compared(bound):
    grpo, ppo = (dataclasses.replace(ALGORITHMS[name], **bound) for name in ("grpo", "ppo"))
    assert grpo.screening.fault([0.4] * 4) == NO_SPREAD
    assert grpo.screening.fault([0.4, 0.4, 0.4, 0.5]) is None
    assert ppo.screening.fault([0.4] * 4) is None
    assert ALGORITHMS["grpo"].screening.fault([0.4] * 4) is None


REWARDS = [(1.0, 1.0), (0.0, 0.4), (0.5, 0.5), (0.0, 1.0), (0.4, 0.0), (1.0, 0.0)]


@pytest.mark.parametrize(
    ("keep", "count", "chosen"),
    [
        ("first", 2, [1, 3]),
        ("first", 4, [1, 3, 4, 5]),
        ("first", 5, [0, 1, 3, 4, 5]),
        ("best", 2, [3, 5]),
        ("best", 3, [1, 3, 5]),
        ("best", 6, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_of_more_groups_than_needed_those_that_teach_stay_in_their_order(keep, count, chosen):
    screening = Screening(True, -UNBOUNDED, UNBOUNDED, 1)
    assert choose(screening, REWARDS, count, keep) == chosen


def test_groups_are_measured_by_parts_of_their_rewards_if_these_are_named():
    rewards, parts = np.float32([1.05, 1.0]), np.float32([[1, 0.5], [1, 0]])
    assert filter_values(rewards, parts, ()) == rewards.tolist()
    assert filter_values(rewards, None, ()) == rewards.tolist()
    assert filter_values(rewards, parts, (1.0, 0.0)) == [1.0, 1.0]
    assert filter_values(rewards, parts, (0.5, -2.0)) == [-0.5, 0.5]


def test_a_filter_needs_spread_of_what_it_names():
    filtered = dataclasses.replace(ALGORITHMS["grpo"], filter=" outcome, format ,")
    assert filtered.filtered_parts == ("outcome", "format")
    assert filtered.screening.needs_spread
    assert not dataclasses.replace(ALGORITHMS["grpo"], filter=" ").screening.needs_spread


def test_without_screening_the_first_are_the_first():
    assert choose(NO_SCREENING, REWARDS, 3, "first") == [0, 1, 2]
