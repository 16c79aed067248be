"""Priorities of groups."""

import numpy as np
import pytest

from rl_sync.replay.priorities import PRIORITIES, priority_of
from rl_sync.types import Group


def group(rewards, version=0, lengths=(1, 3)):
    mask = np.arange(4)[None] < np.array(lengths)[:, None]
    return Group(
        lease_id=0,
        ordinal=0,
        prompt_id=0,
        explorer=1,
        tokens=np.zeros(mask.shape, np.int32),
        completion_mask=mask,
        behavior_logprobs=np.zeros(mask.shape, np.float32),
        policy_versions=np.where(mask, version + np.arange(len(mask))[:, None], -1).astype(
            np.int32
        ),
        rewards=np.array(rewards, np.float32),
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [("variance", 0.25), ("advantage", 0.5), ("reward", 1.0), ("recency", 8.0), ("length", 2.0)],
)
def test_priorities_are_numbers_of_a_group(name, expected):
    assert priority_of(group((0.5, 1.5), version=7), name, "max_heap") == expected


@pytest.mark.parametrize("name", ["variance", "advantage"])
@pytest.mark.parametrize("reward", [0.1, 0.7, 99.9])
@pytest.mark.parametrize("size", [6, 7, 8])
def test_groups_of_equal_rewards_have_the_priority_0(name, reward, size):
    assert priority_of(group([reward] * size, lengths=[1] * size), name, "max_heap") == 0.0


@pytest.mark.parametrize("name", PRIORITIES)
def test_a_group_of_the_first_version_whose_rewards_agree_has_a_priority(name):
    assert priority_of(group((0.0, 0.0)), name, "prioritized") >= 0.0


def test_what_cannot_be_drawn_in_proportion_to_a_negative_number_is_not_drawn():
    bad = group((-1.0, -2.0))
    assert priority_of(bad, "reward", "prioritized") == 0.0
    assert priority_of(bad, "reward", "min_heap") == -1.5


@pytest.mark.parametrize("sampler", ["fifo", "lifo", "uniform"])
def test_samplers_that_do_not_look_at_priorities_get_none(sampler):
    assert priority_of(group((0.5, 1.5)), "reward", sampler) == 1.0
