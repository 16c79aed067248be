import pytest

from rl_sync.rewards.final import FinalAnswer


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
    assert FinalAnswer().score("7*12+58=", completion, "241") == reward


def test_a_marker_may_be_longer():
    assert FinalAnswer("####").score("?", "#1 ... #### 7", "7") == 1.0
