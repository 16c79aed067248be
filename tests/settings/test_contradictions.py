"""Rules between settings of evaluations and of rewards."""

import pytest

from rl_sync.settings.records import ConfigError
from tests.settings.changed import settings_with

BEST = {"checkpoint__best": "majority@4", "evaluation__samples": 4, "evaluation__every_steps": 2}


@pytest.mark.parametrize("reward", ["math", "exact + 0.1 * length_band(greatest=9)", "mine.py:one"])
def test_the_best_snapshot_may_be_that_of_the_best_vote(reward):
    assert settings_with(**BEST, task__reward=reward).checkpoint.best == "majority@4"


@pytest.mark.parametrize("reward", ["code", "length_band(greatest=9) + exact"])
def test_there_is_no_vote_where_the_reward_reads_no_answer(reward):
    with pytest.raises(ConfigError, match="needs a reward that reads an answer") as raised:
        settings_with(**BEST, task__reward=reward)
    assert "use mean@4" in str(raised.value)
    other = BEST | {"checkpoint__best": "mean@4"}
    assert settings_with(**other, task__reward=reward).checkpoint.best == "mean@4"
