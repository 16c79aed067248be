import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.environments.dialogue.trajectory import (
    ReplySpan,
    Trajectory,
    append_reply,
    append_turn,
    begin_segment,
)

IDS = st.lists(st.integers(0, 9), max_size=4)
DRAWN = st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 0, width=32), st.integers(0, 3)))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("segment"), IDS.filter(len)),
        st.tuples(st.just("turn"), IDS),
        st.tuples(st.just("reply"), DRAWN),
    ),
    max_size=8,
)


def columns(drawn):
    return [list(column) for column in zip(*drawn, strict=True)] or [[], [], []]


def test_an_episode_of_two_turns_by_hand():
    trajectory = begin_segment(Trajectory(), [5, 6])
    trajectory = append_reply(trajectory, [7, 1], [-0.5, -0.25], [3, 4])
    trajectory = append_turn(trajectory, [8])
    trajectory = append_reply(trajectory, [9], [-1.0], [4])
    (segment,) = trajectory.segments
    assert segment.tokens.tolist() == [5, 6, 7, 1, 8, 9]
    assert segment.mask.tolist() == [False, False, True, True, False, True]
    assert segment.behavior_logprobs.tolist() == [0, 0, -0.5, -0.25, 0, -1]
    assert segment.policy_versions.tolist() == [-1, -1, 3, 4, -1, 4]
    assert trajectory.replies == (ReplySpan(0, 2, 4), ReplySpan(0, 5, 6))
    kinds = [getattr(segment, name).dtype for name in ("tokens", "mask", "behavior_logprobs")]
    assert kinds == [np.int32, np.bool_, np.float32]


def test_sampling_masks_stand_at_the_places_of_their_tokens():
    first, second = (np.array([[0, 0, bits]], np.uint32) for bits in (3, 5))
    trajectory = begin_segment(Trajectory(), [5, 6])
    trajectory = append_reply(trajectory, [1, 0], [-0.5, -0.5], [0, 0], masks=first)
    trajectory = append_reply(append_turn(trajectory, [8]), [2], [-0.5], [0], masks=second)
    (segment,) = trajectory.segments
    assert segment.masks.tolist() == [[2, 0, 3], [5, 0, 5]]
    apart = append_reply(begin_segment(trajectory, [4]), [2], [-0.5], [0], masks=second)
    assert apart.segments[1].masks.tolist() == [[1, 0, 5]]


def test_a_new_segment_leaves_earlier_replies_where_they_were_drawn():
    trajectory = append_reply(begin_segment(Trajectory(), [5]), [7], [-0.5], [0])
    trajectory = append_reply(begin_segment(trajectory, [5, 8]), [9], [-0.5], [1])
    assert [s.tokens.tolist() for s in trajectory.segments] == [[5, 7], [5, 8, 9]]
    assert [s.mask.tolist() for s in trajectory.segments] == [[False, True], [False, False, True]]
    assert trajectory.replies == (ReplySpan(0, 1, 2), ReplySpan(1, 2, 3))
    assert trajectory.context.tolist() == [5, 8, 9]


@given(IDS.filter(len), EVENTS)
def test_tokens_are_only_appended_and_drawn_ones_stay_as_drawn(first, events):
    trajectory = begin_segment(Trajectory(), first)
    replies = []
    for kind, value in events:
        before = trajectory
        if kind == "segment":
            trajectory = begin_segment(trajectory, value)
            assert trajectory.segments[:-1] == before.segments
        else:
            if kind == "turn":
                trajectory = append_turn(trajectory, value)
            else:
                replies.append(columns(value))
                trajectory = append_reply(trajectory, *replies[-1])
            assert trajectory.segments[:-1] == before.segments[:-1]
            length = len(before.context)
            assert trajectory.context[:length].tolist() == before.context.tolist()
    for span, (tokens, logprobs, versions) in zip(trajectory.replies, replies, strict=True):
        segment, place = trajectory.segments[span.segment], slice(span.start, span.stop)
        assert segment.tokens[place].tolist() == tokens
        assert segment.behavior_logprobs[place].tolist() == logprobs
        assert segment.policy_versions[place].tolist() == versions
    drawn = sum(len(tokens) for tokens, _, _ in replies)
    assert sum(segment.mask.sum() for segment in trajectory.segments) == drawn
    for segment in trajectory.segments:
        columns_ = (segment.mask, segment.behavior_logprobs, segment.policy_versions)
        assert {len(column) for column in columns_} == {len(segment)}
        assert (segment.policy_versions[~segment.mask] == -1).all()
        assert (segment.behavior_logprobs[~segment.mask] == 0).all()


def test_what_was_recorded_cannot_be_written_to():
    trajectory = append_reply(begin_segment(Trajectory(), [5]), [7], [-0.5], [0])
    for segment in (trajectory.segments[0], begin_segment(Trajectory(), [5]).segments[0]):
        with pytest.raises(ValueError, match="read-only"):
            segment.tokens[0] = 1


@pytest.mark.parametrize(
    ("reply", "rule"),
    [
        (([7, 8], [-0.5], [0, 0]), "2 tokens, 1 logprobs and 2 versions"),
        (([7], [0.5], [0]), "at most 0, not 0.5"),
        (([7], [float("nan")], [0]), "at most 0, not nan"),
        (([7], [float("-inf")], [0]), "at most 0, not -inf"),
        (([7], [-0.5], [-1]), "at least 0, not -1"),
        (([-7], [-0.5], [0]), "from 0"),
        (([7.5], [-0.5], [0]), "sequence of integers"),
    ],
)
def test_a_reply_that_was_not_drawn_is_refused(reply, rule):
    with pytest.raises(ValueError, match=rule):
        append_reply(begin_segment(Trajectory(), [5]), *reply)


def test_a_trajectory_begins_with_a_segment_that_has_tokens():
    with pytest.raises(ValueError, match="use begin_segment"):
        append_turn(Trajectory(), [1])
    with pytest.raises(ValueError, match="needs a token"):
        begin_segment(Trajectory(), [])
