import pytest

from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.reward_parts import RewardPart, chosen_weights, read_parts
from rl_sync.rewards.rubric import Rubric, ScoringRequest

MIXED = "by_set(sums='exact + 0.1 * length_band(greatest=3)', facts='2 * math')"


def test_parts_are_the_terms_with_their_weights():
    assert read_parts(
        "math - 0.5 * format(tags='think,answer') + my/own.py:terse + exact + exact"
    ) == (
        RewardPart("math", 1.0, shapes=False),
        RewardPart("format", -0.5, shapes=True),
        RewardPart("terse", 1.0, shapes=False),
        RewardPart("exact", 1.0, shapes=False),
        RewardPart("exact_2", 1.0, shapes=False),
    )


@pytest.mark.parametrize(
    "reward", ["exact", "exact + 0.1 * repetition - language", "exact + exact"]
)
def test_parts_have_the_labels_of_the_rubric(reward):
    assert [part.label for part in read_parts(reward)] == Rubric(reward).labels


def test_a_mixture_has_the_parts_of_each_set():
    assert read_parts(f"0.5 * {MIXED} + 3 * soft_overlong") == (
        RewardPart("by_set/sums/exact", 0.5, shapes=False),
        RewardPart("by_set/sums/length_band", 0.05, shapes=True),
        RewardPart("by_set/facts/math", 1.0, shapes=False),
        RewardPart("soft_overlong", 3.0, shapes=True),
    )


def test_judgements_have_the_scores_by_the_parts_that_apply():
    reward = f"0.5 * {MIXED} + 3 * repetition"
    row = {"prompt": "1+1=", "answer": "2", "task_set": "sums"}
    (one,) = Rubric(reward).judge([ScoringRequest(row, Completion("2", [5]))])
    labels = [part.label for part in read_parts(reward)]
    assert [one.components.get(label) for label in labels] == [1.0, 1.0, None, 1.0]
    weighed = sum(part.weight * one.components.get(part.label, 0) for part in read_parts(reward))
    assert one.score == pytest.approx(weighed) == pytest.approx(3.55)


@pytest.mark.parametrize(
    ("reward", "names", "weights"),
    [
        ("math + 0.1 * format", ["outcome"], (1.0, 0.0)),
        ("0.2 * format + 2 * math - 0.1 * code", ["outcome"], (0.0, 2.0, -0.1)),
        ("math + 0.1 * format", ["format"], (0.0, 0.1)),
        ("math + 0.1 * format + 0.2 * language", ["outcome", "language"], (1.0, 0.0, 0.2)),
        ("exact + exact", ["exact_2"], (0.0, 1.0)),
        (MIXED, ["outcome"], (1.0, 0.0, 2.0)),
        (MIXED, ["exact", "length_band"], (1.0, 0.1, 0.0)),
        (MIXED, ["by_set/facts/math"], (0.0, 0.0, 2.0)),
    ],
)
def test_parts_are_chosen_by_name(reward, names, weights):
    assert chosen_weights(read_parts(reward), names) == pytest.approx(weights)


def test_a_name_that_no_part_has_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"the part='mat' is not one of outcome, math.*'math'\?"):
        chosen_weights(read_parts("math + format"), ["mat"])
