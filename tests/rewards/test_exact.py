import pytest

from rl_sync.rewards.exact import ExactMatch
from rl_sync.rewards.judgement import Completion


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("132", 1.0), (" 132\n", 1.0), ("13", 0.0), ("1 32", 0.0), ("1320", 0.0), ("", 0.0)],
)
def test_only_the_answer_is_rewarded(completion, reward):
    judged = ExactMatch()({"prompt": "47+85=", "answer": "132 "}, Completion(completion))
    assert judged.score == reward
