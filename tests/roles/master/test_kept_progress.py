"""Tokens that the master keeps: in parts, once each, and within the limit."""

import numpy as np
import pytest

from rl_sync.messages.events import LiveLease
from rl_sync.messages.master_calls import ToldProgress
from rl_sync.roles.master.kept_progress import KeptProgress
from rl_sync.token_records import SamplerRecord
from rl_sync.types import CompletionProgress, ReplyMark

BYTES, MASK_BYTES = 32, 12
"""Sizes of a token (id, log-probability, version, two likeliest tokens), and of a mask."""
WHOLE = CompletionProgress(
    np.arange(9, dtype=np.int32),
    np.arange(9, dtype=np.float32) / 8,
    np.array([0] * 4 + [2] * 5, np.int32),
    np.array([[1, 1, 7], [5, 1, 3]], np.uint32),
    "stop",
    SamplerRecord(np.arange(27, dtype=np.float32).reshape(9, 3), np.ones((9, 2), np.int32)),
)


def part(start, end, lease_id=7, row=0):
    return ToldProgress(lease_id, row, start, beginning(end).after(start))


def beginning(end):
    """Returns the first tokens, which have an end if they are all."""
    tokens, logprobs, versions, masks, finish, sampler = WHOLE[:6]
    return CompletionProgress(
        tokens[:end],
        logprobs[:end],
        versions[:end],
        masks[masks[:, 0] < end],
        finish if end == len(tokens) else None,
        sampler.before(end),
    )


def assert_equal(one, other):
    for mine, theirs in zip((*one[:5], *one.sampler), (*other[:5], *other.sampler), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one[6:] == other[6:]


def live(lease_id=7, ordinal=3, **fields):
    return {lease_id: LiveLease(lease_id, ordinal, 0, 1, 0, False, 0.0)._replace(**fields)}


@pytest.mark.parametrize("cuts", [(9,), (2, 9), (1, 2, 6, 9), (4, 4, 9)])
def test_parts_make_the_whole_and_one_that_comes_again_counts_once(cuts):
    kept, start = KeptProgress(1000), 0
    for end in cuts:
        for _ in range(2):
            assert kept.take([part(start, end)], live()) == ([], (7,))
        ((row, found),) = kept.of(3)
        assert row == 0
        assert_equal(found, beginning(end))
        start = end
    assert not kept.take([part(3, 6)], live())[0], "an old part that comes late"
    assert_equal(kept.of(3)[0][1], WHOLE)


def test_a_part_without_the_tokens_before_it_is_asked_for_from_the_first():
    kept = KeptProgress(1000)
    assert kept.take([part(4, 6)], live()) == ([7], ())
    assert kept.of(3) == ()
    assert kept.take([part(0, 6), part(0, 2, row=1)], live()) == ([], (7,))
    assert [row for row, _ in kept.of(3)] == [0, 1]
    assert kept.take([part(0, 8)], live(is_kept=True)) == ([], ()), "it is noted already"
    assert_equal(kept.of(3)[0][1], beginning(8))


def episode(end, attempt=0, turns=(b"a", b"b", b"c")):
    """Returns the first tokens of an episode whose replies have three tokens each."""
    marks = [
        ReplyMark(3 * i, turn, None, "stop" if end >= 3 * i + 3 else None)
        for i, turn in enumerate(turns)
        if 3 * i < end
    ]
    return beginning(end)._replace(finish=None, replies=tuple(marks), attempt=attempt)


@pytest.mark.parametrize("cuts", [(9,), (3, 9), (1, 2, 6, 9), (2, 3, 3, 7)])
def test_parts_of_an_episode_make_its_replies(cuts):
    kept, start = KeptProgress(10_000), 0
    for end in cuts:
        told = ToldProgress(7, 0, start, episode(end).after(start))
        assert kept.take([told], live())[0] == []
        ((_, found),) = kept.of(3)
        assert_equal(found, episode(end))
        start = end


def test_an_episode_that_goes_on_otherwise_replaces_what_was_kept_of_it():
    kept = KeptProgress(10_000)
    for other in (episode(8), episode(4, attempt=1), episode(5, 1, (b"a", b"x"))):
        assert kept.take([ToldProgress(7, 0, 0, other)], live())[0] == []
        assert_equal(kept.of(3)[0][1], other)


def test_nothing_is_joined_to_an_attempt_that_is_over():
    """There is no room for the first tokens of the next attempt."""
    small = KeptProgress(8 * BYTES + 2 * MASK_BYTES + 3 * 64)
    other, again = episode(8)._replace(masks=WHOLE.masks[:1]), episode(9, attempt=1)
    small.take([ToldProgress(7, 0, 0, other)], live())
    assert small.of(3)
    small.take([ToldProgress(7, 0, 0, again)], live())
    assert small.of(3) == ()
    small.take([ToldProgress(7, 0, 8, again.after(8))], live())
    assert small.of(3) == ()
    small.take([ToldProgress(7, 0, 0, other)], live())
    assert_equal(small.of(3)[0][1], other)


def test_leases_that_have_ended_or_are_buffered_are_passed_over():
    kept = KeptProgress(1000)
    assert kept.take([part(0, 4)], {}) == kept.take([part(0, 4)], live(buffered=True)) == ([], ())
    assert not kept


def test_what_does_not_fit_is_neither_kept_nor_asked_for_until_there_is_room():
    kept = KeptProgress(8 * BYTES + 2 * MASK_BYTES)
    groups = live() | live(8, 4)
    assert kept.take([part(0, 4)], groups) == ([], (7,))
    assert kept.take([part(0, 4, lease_id=8)], groups) == ([], (8,)), "four tokens and a mask each"
    assert kept.take([part(4, 6, lease_id=8)], groups) == ([], (8,))
    assert_equal(kept.of(4)[0][1], beginning(4))
    assert kept.take([part(6, 8, lease_id=8)], groups) == ([], (8,))
    kept.keep_only({4})
    assert kept.of(3) == ()
    assert kept.take([part(6, 8, lease_id=8)], groups)[0] == [8]
    assert kept.take([part(0, 8, lease_id=8)], groups) == ([], (8,))
    assert_equal(kept.of(4)[0][1], beginning(8))
    assert kept.take([part(8, 9, lease_id=8)], groups) == ([], (8,)), "it is full"
    assert_equal(kept.of(4)[0][1], beginning(8))
    kept.keep_only(())
    assert not kept
    assert kept.take([part(0, 9)], live()) == ([], ()), "it has room for no whole completion"
    assert not kept
