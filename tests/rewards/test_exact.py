import pytest

from rl_sync.rewards.exact import ExactMatch, FinalAnswer
from rl_sync.rewards.judgement import Completion


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("132", 1.0), (" 132\n", 1.0), ("13", 0.0), ("1 32", 0.0), ("1320", 0.0), ("", 0.0)],
)
def test_only_the_answer_is_rewarded(completion, reward):
    judged = ExactMatch()({"prompt": "47+85=", "answer": "132 "}, Completion(completion))
    assert judged.score == reward


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("00:241#241", 1.0),
        ("nonsense # 241 ", 1.0),
        ("#1#241", 1.0),
        ("#241#1", 0.0),
        ("241", 0.0),
        ("#2410", 0.0),
        ("#", 0.0),
        ("", 0.0),
    ],
)
def test_what_stands_after_the_last_marker_is_rewarded_and_nothing_else(completion, reward):
    assert FinalAnswer()({"answer": "241"}, Completion(completion)).score == reward


def test_a_marker_may_be_longer():
    judged = FinalAnswer("####")({"answer": "7"}, Completion("#1 ... #### 7"))
    assert (judged.score, judged.why) == (1.0, "final answer '7'")
