import pytest

from rl_sync.ending import Ending
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest, example_rows

WON = Ending({"turns": 0.25, "won": 1.0}, {}, "done", "", turns=3)


def _judged(ending, reward="environment"):
    (judgement,) = Rubric(reward).judge([ScoringRequest({}, Completion("x", ending=ending))])
    return judgement


def test_the_rewards_of_an_episode_are_summed_and_logged_by_name():
    judged = _judged(WON)
    assert judged.score == 1.25
    assert judged.components == {
        "environment": 1.25,
        "environment/turns": 0.25,
        "environment/won": 1.0,
    }


def test_one_reward_can_be_taken_and_weighed_with_others():
    assert _judged(WON, "environment(name='won')").score == 1.0
    assert _judged(WON, "2 * environment(name='won') + environment").score == 3.25


def test_a_reward_that_the_environment_never_gives_is_no_score():
    judged = _judged(WON, "environment(name='win')")
    assert not judged.is_known
    assert judged.why == "the environment gave no reward 'win', but turns, won"


def test_an_episode_that_was_cut_before_its_reward_has_none():
    cut = WON._replace(rewards={"turns": 0.25}, reason="turns")
    assert _judged(cut, "environment(name='won')").score == 0.0
    assert _judged(cut).score == 0.25


def test_an_episode_that_ended_well_and_gave_no_reward_is_no_score_but_says_why():
    nothing = Ending({}, {}, "done", "nothing was posted", turns=1)
    for reward in ("environment", "environment(name='won')"):
        judged = _judged(nothing, reward)
        assert (judged.is_known, judged.why) == (False, "nothing was posted")


@pytest.mark.parametrize("reward", ["environment", "exact", "exact + 0.5 * environment"])
@pytest.mark.parametrize("reason", ["environment failure", "time-out"])
def test_a_failed_episode_is_not_judged_by_any_reward_and_says_why(reason, reward):
    lost = Completion("4", ending=Ending({}, {}, reason, "ValueError: no board", turns=1))
    row = {"prompt": "2+2=", "answer": "4"}
    whole = Completion("4", ending=WON)
    items = [ScoringRequest(row, one) for one in (lost, whole, lost)]
    first, second, third = Rubric(reward).judge(items)
    assert not first.is_known
    assert first.why == third.why == f"{reason}: ValueError: no board"
    assert second.is_known


def test_without_an_environment_nothing_is_judged():
    assert _judged(None).why == "there was no episode: set environment.name"


def test_a_run_s_trial_of_its_reward_has_an_example():
    (judged,) = Rubric("environment").judge(example_rows([{"prompt": "2+2=", "answer": "4"}], 1))
    assert judged.score == 0.0


@pytest.mark.parametrize(
    "reward",
    [
        "environment(name='won')",
        "exact + 0.1 * length_band(greatest=4)",
        "exact + soft_overlong(max_tokens=8, cache_tokens=2)",
        "by_set(sums='exact + 0.1 * length_band(greatest=4)')",
    ],
)
def test_a_trial_judges_rewards_that_read_tokens(reward):
    rows = [{"prompt": "2+2=", "answer": "4", "task_set": "sums"}]
    (judged,) = Rubric(reward).judge(example_rows(rows, 1, lambda text: [7, 1]))
    assert judged.is_known, judged.why
