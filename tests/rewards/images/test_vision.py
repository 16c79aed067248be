"""The reward that judges each row by its kind, in expressions and in workers."""

import numpy as np
import pytest

from rl_sync.images import Image
from rl_sync.rewards.images.vision import KINDS, VisionReward
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.scoring.local_scorer import LocalScorer

IMAGE = Image.of_array(np.zeros((10, 10, 3), np.uint8))
# The row, a right completion, and a wrong one, of each kind.
EXAMPLES = {
    "box": ({"boxes": [0, 0, 5, 5]}, "[0, 0, 5, 5]", "[5, 5, 9, 9]"),
    "point": ({"boxes": [0, 0, 5, 5]}, "(2, 3)", "(7, 7)"),
    "count": ({"answer": "4"}, "four", "5"),
    "words": ({"answers": ["red"] * 10}, "Red.", "blue"),
    "text": ({"answer": "Main Street"}, "main street", "Broadway"),
    "number": ({"answer": "40"}, "41", "50"),
    "choice": ({"answer": "A", "choices": ["left", "right"]}, "left", "B"),
}


def items():
    for kind, (row, right, wrong) in EXAMPLES.items():
        fields = {"prompt": "?", "images": [IMAGE], "kind": kind, **row}
        yield ScoringRequest(fields, Completion(right)), 1
        yield ScoringRequest(fields, Completion(wrong)), 0


@pytest.mark.gate
def test_each_kind_is_judged_by_its_reward_in_workers():
    assert EXAMPLES.keys() == KINDS.keys()
    judges = LocalScorer("vision", RewardSettings(workers=1))
    try:
        judged = judges.judge([item for item, _ in items()])
    finally:
        judges.close()
    assert [one.score for one in judged] == [score for _, score in items()]


def test_every_row_is_checked_by_its_kind():
    Rubric("vision").check(item.row for item, _ in items())
    with pytest.raises(ValueError, match=r"problem 1 .*row\['boxes'\] is missing"):
        Rubric("vision").check([{"prompt": "?", "kind": "box"}])
    with pytest.raises(ValueError, match=r"row\['kind'\]='boxes' is not one of box, .* 'box'"):
        Rubric("vision").check([{"prompt": "?", "kind": "boxes"}])
    assert VisionReward()({"kind": "sound"}, Completion("a")).score is None


def test_options_reach_the_rewards_of_boxes():
    row = {"kind": "box", "boxes": [0, 0, 5, 5], "images": [IMAGE]}
    half = Completion("[0, 0, 0.25, 0.5]")
    assert VisionReward(answer_scale="unit")(row, half).score == pytest.approx(0.5)
    assert VisionReward(answer_scale="unit", threshold=0.6)(row, half).score == 0
    assert VisionReward(kind="count")({"answer": 2}, Completion("2")).score == 1
    for options in ({"kind": "sound"}, {"order": "abcd"}, {"threshold": 2}):
        with pytest.raises(ValueError):
            VisionReward(**options)


@pytest.mark.parametrize(
    "name", ["iou", "point_in_box", "count", "vqa", "anls", "relaxed_number", "choice", "vision"]
)
def test_rewards_have_names(name):
    assert Rubric(name).labels == [name]
