"""Episodes that one engine has begun are played again in another, with the replies so far."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest

from rl_sync.roles.explorer.actor import ExplorerState
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import (
    Continue,
    EpisodeRequest,
    counted_tokens,
    progress_of,
    replies_of,
)
from rl_sync.rollout.request import Handle
from rl_sync.rollout.sampling import LogitsProcessors, Sampling
from rl_sync.sequence_images import SequenceImages
from rl_sync.token_records import SamplerShape
from rl_sync.types import Lease
from tests.roles.explorer import test_actor, test_self_play
from tests.rollout.test_episode_records import (
    MODEL,
    PARAMS,
    PROMPT,
    SAMPLING,
    TURN,
    Script,
    _engine,
)

EPISODES = 3
ANEW = np.arange(10, 16, dtype=np.int32)
TURNS = (
    Continue(0, TURN, reward=0.5),
    Continue(0, ANEW, begins_segment=True, reward=0.25),
    Continue(0, TURN + 1, room=4),
)
OTHER = (TURNS[0], Continue(0, ANEW + 1, begins_segment=True), TURNS[2])
STATE = ExplorerState(4, PARAMS)
RECORDED = Sampling(max_new_tokens=5, stop_ids=(1,), top_k=6)
RECORDS = {
    "sampler": SamplerShape(MODEL.vocab_size),
    "changes": LogitsProcessors(truncates=True, masks=True),
}


def episodes(version=4, script=None, **options):
    script = Script() if script is None else script
    made = EpisodeEngine(_engine(**options), lambda: script, repeats=True)
    made.load(PARAMS, version)
    return made


def asked(turns=TURNS, sampling=SAMPLING):
    return EpisodeRequest({"turns": turns}, sampling, EPISODES, (3,))


def play(made, request, steps=1 << 30):
    """Returns the finished episodes after some steps, by their indices."""
    made.submit([request])
    played = []
    while made.unfinished and (steps := steps - 1) >= 0:
        played += made.step()
    return {one.index: one for one in played}


def told(made, played):
    """Returns the progress of each episode by its index, as an explorer tells it."""
    found = made.progress([Handle(0, index) for index in range(EPISODES)])
    found = {handle.index: progress for handle, progress in found.items()}
    return found | {index: one.progress() for index, one in played.items()}


def drawn(made):
    stats = made.stats
    return stats.decode_tokens - stats.surplus_tokens


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for index, one in found.items():
        other = expected[index]
        assert one.turn_rewards == other.turn_rewards
        assert one.trajectory.replies == other.trajectory.replies
        for segment, known in zip(one.trajectory.segments, other.trajectory.segments, strict=True):
            assert segment.tokens.tolist() == known.tokens.tolist()
            assert segment.mask.tolist() == known.mask.tolist()
            assert sorted(segment.masks.tolist()) == sorted(known.masks.tolist())
            for name in ("behavior_logprobs", "policy_versions"):
                np.testing.assert_allclose(getattr(segment, name), getattr(known, name), atol=1e-5)
            for place, same in zip(segment.samplers, known.samplers, strict=True):
                assert place.first == same.first
                np.testing.assert_allclose(place.record.logprobs, same.record.logprobs, atol=1e-4)


@pytest.mark.samples(gate=("False",))
@pytest.mark.parametrize("records", [False, True])
def test_an_episode_goes_on_elsewhere_with_the_same_tokens_from_any_moment(records):
    options, request = {}, asked()
    if records:
        options, request = RECORDS, asked(sampling=RECORDED)
    undisturbed = episodes(**options)
    whole = play(undisturbed, request)
    kept = sum(one.sampled_tokens for one in whole.values())
    assert drawn(undisturbed) == kept
    moments = 0
    for steps in range(1, 40):
        first = episodes(**options)
        played = play(first, request, steps)
        so_far = told(first, played)
        if not first.unfinished:
            break
        moments += 1
        given = sum(len(one.tokens) for one in so_far.values())
        assert given == drawn(first)
        other = episodes(**options)
        found = play(other, dataclasses.replace(request, begun=so_far))
        assert_same(found, whole)
        assert drawn(other) == kept - given
        assert other.tokens_in_flight == other.stats.differing_tokens == 0
        assert other.engine.held == ()
    assert moments > 5


def test_given_replies_keep_their_versions_and_their_logprobs_to_the_bit():
    request = asked()
    first = episodes(version=4)
    so_far = told(first, play(first, request, 5))
    found = play(episodes(version=7), dataclasses.replace(request, begun=so_far))
    for index, before in so_far.items():
        replies = found[index].progress()
        count = len(before.tokens)
        assert count
        assert replies.logprobs[:count].tolist() == before.logprobs.tolist()
        assert replies.versions.tolist() == [4] * count + [7] * (len(replies.tokens) - count)


def test_what_is_told_is_told_again_while_it_is_given():
    """The second explorer may die, too, before it has come to where the first was."""
    request = asked()
    first = episodes()
    so_far = told(first, play(first, request, 7))
    steps = 0
    while True:
        other = episodes()
        played = play(other, dataclasses.replace(request, begun=so_far), steps)
        again = told(other, played)
        for index, before in so_far.items():
            assert again[index].follows(before)
            assert again[index].tokens[: len(before.tokens)].tolist() == before.tokens.tolist()
        known = sum(len(one.tokens) for one in so_far.values())
        ended = sum(one.sampled_tokens for one in played.values())
        assert other.tokens_in_flight + ended == known + drawn(other)
        if drawn(other):
            break
        steps += 1
    assert steps > 2


def test_where_a_turn_differs_the_replies_from_there_on_are_dropped_and_counted():
    request, other_request = asked(), asked(OTHER)
    first = episodes()
    played = play(first, request, 9)
    so_far = told(first, played)
    assert min(len(one.replies) for one in so_far.values()) >= 3
    other = episodes()
    found = play(other, dataclasses.replace(other_request, begun=so_far))
    assert_same(found, play(episodes(), other_request))
    dropped = sum(len(one.tokens) - one.replies[2].start for one in so_far.values())
    given = sum(one.replies[2].start for one in so_far.values())
    assert other.stats.differing_tokens == dropped > 0
    kept = sum(one.sampled_tokens for one in found.values())
    assert drawn(other) == kept - given


def test_a_turn_with_another_room_or_place_is_another_turn():
    shade = np.zeros((1, 4, 4, 3), np.uint8)
    images = [SequenceImages(np.array([0, 1], np.int32), shade, (name,)) for name in "xy"]
    turn = TURNS[0]
    others = [
        turn,
        turn._replace(ids=TURN + 1),
        turn._replace(begins_segment=True),
        turn._replace(room=3),
        turn._replace(stop_strings=("a",)),
        turn._replace(segment=1),
        turn._replace(opponent=1),
        *(turn._replace(images=shown) for shown in images),
    ]
    assert len({one.digest() for one in others}) == len(others)
    assert turn.digest() == turn._replace(episode=9, reward=1.0, request=4).digest()


def test_an_episode_that_ends_earlier_drops_what_is_left():
    first = episodes()
    so_far = told(first, play(first, asked(), 9))
    other = episodes()
    found = play(other, dataclasses.replace(asked(TURNS[:1]), begun=so_far))
    assert [len(one.trajectory.replies) for one in found.values()] == [2] * EPISODES
    assert drawn(other) == 0
    left = sum(len(one.tokens) - one.replies[2].start for one in so_far.values())
    assert other.stats.differing_tokens == left > 0


def test_an_episode_that_begins_again_drops_what_was_told_before():
    again = Continue(0, PROMPT, begins_segment=True, restarts=True)
    turns = (TURNS[0], again, TURNS[0])
    whole = play(episodes(), asked(turns))
    attempts = set()
    for steps in (3, 5, 7, 9):
        first = episodes()
        played = play(first, asked(turns), steps)
        so_far = told(first, played)
        attempts |= {one.attempt for one in so_far.values()}
        for one in so_far.values():
            assert not one.attempt or one.replies[0].start == 0
        # There the environment may not fail again.
        behaves = (
            asked((TURNS[0],)) if all(one.attempt for one in so_far.values()) else asked(turns)
        )
        found = play(episodes(), dataclasses.replace(behaves, begun=so_far))
        assert_same(found, whole)
    assert attempts == {0, 1}


class FailsFirst(Script):
    """Fails before the first turn of each episode, which then begins again."""

    def begin(self, episodes):
        super().begin(episodes)
        self._answers = [one._replace(restarts=True) for one in self._answers]


@pytest.mark.parametrize("fails_again", [False, True])
def test_an_episode_that_failed_before_its_first_turn_has_the_draws_of_its_attempt(fails_again):
    whole = play(episodes(script=FailsFirst()), asked())
    assert whole.keys() == {0, 1, 2}
    assert whole[0].attempt == 1
    first = episodes(script=FailsFirst())
    so_far = told(first, play(first, asked(), 6))
    other = episodes(script=FailsFirst() if fails_again else Script())
    assert_same(play(other, dataclasses.replace(asked(), begun=so_far)), whole)
    assert other.stats.differing_tokens == 0


def test_an_episode_that_fails_while_it_is_played_again_begins_anew():
    first = episodes()
    so_far = told(first, play(first, asked(), 9))
    again = Continue(0, PROMPT, begins_segment=True, restarts=True)
    other = episodes()
    found = play(other, dataclasses.replace(asked((again, *TURNS)), begun=so_far))
    assert_same(found, play(episodes(), asked((again, *TURNS))))
    given = sum(len(one.tokens) for one in so_far.values())
    assert other.stats.restarted_tokens == sum(one.replies[1].start for one in so_far.values())
    assert other.stats.differing_tokens == given - other.stats.restarted_tokens > 0


@pytest.mark.gate
@pytest.mark.parametrize("opponent", ["self", "older(versions=3)"])
def test_replies_of_opponents_are_given_too(opponent):
    """With older versions a second engine plays the opponents."""
    request = test_self_play.requests(groups=1, episodes=EPISODES)[0]

    def players():
        return test_self_play.players(opponent)

    whole = play(players(), request)
    speakers = set()
    for steps in (2, 5, 8, 11):
        first = players()
        played = play(first, request, steps)
        so_far = told(first, played)
        speakers |= {mark.opponent for one in so_far.values() for mark in one.replies}
        other = players()
        found = play(other, dataclasses.replace(request, begun=so_far))
        assert_same(found, whole)
        endings = ({at: one.ending for at, one in some.items()} for some in (found, whole))
        assert next(endings) == next(endings)
        stats, counted = other.stats, sum(map(counted_tokens, so_far.values()))
        kept = sum(one.sampled_tokens for one in found.values())
        assert stats.decode_tokens + counted == (
            kept + stats.opponent_tokens + stats.surplus_tokens
        )
    assert speakers == {None, 1, 2}


class AlikeRows(Script):
    """Begins all episodes with the same prompt."""

    def begin(self, episodes):
        super().begin([one._replace(row={"turns": one.row["turns"]}) for one in episodes])


def test_groups_of_episodes_and_their_greedy_ones_go_on_in_another_explorer():
    """A group may be unfinished while some of its episodes have ended."""
    rows = [
        one._replace(row={"turns": TURNS[: 1 + i]}) for i, one in enumerate(test_actor.TASK.train)
    ]
    lease = Lease(100, 1, 0, test_actor.TASK.train[1])

    def explorer():
        task = dataclasses.replace(test_actor.TASK, train=rows)
        return dataclasses.replace(
            test_actor.EXPLORER,
            engine=EpisodeEngine(_engine(), lambda: AlikeRows(), repeats=True),
            task=task,
            sampling=SAMPLING,
            with_baselines=True,
        )

    def told_after(chunks):
        so_far = []

        def newer(state):
            so_far.extend(first.progress(state.unfinished))
            if len(so_far) == chunks:
                raise InterruptedError

        first = explorer()
        with contextlib.suppress(InterruptedError):
            first.rollout(STATE, [lease], newer)
        return so_far[-1] if len(so_far) == chunks else {}

    _, (whole,) = explorer().rollout(STATE, [lease])
    chunks = 0
    while so_far := told_after(chunks := chunks + 1):
        assert set(so_far) <= {0, 1, 2, 3}
        begun = tuple(sorted(so_far.items()))
        _, (group,) = explorer().rollout(STATE, [lease._replace(begun=begun)])
        assert group.tokens.tolist() == whole.tokens.tolist()
        assert group.completion_mask.tolist() == whole.completion_mask.tolist()
        np.testing.assert_allclose(group.behavior_logprobs, whole.behavior_logprobs, atol=1e-5)
    assert chunks > 4


@pytest.mark.gate
def test_told_replies_come_apart_as_they_were_joined():
    first = episodes(**RECORDS)
    played = play(first, asked(sampling=RECORDED), 8)
    for one in told(first, played).values():
        assert len(one.masks)
        again = progress_of(replies_of(one), one.attempt)
        assert again.replies == one.replies
        for array, same in zip((*again[:4], *again.sampler), (*one[:4], *one.sampler), strict=True):
            np.testing.assert_array_equal(array, same)
        for part in range(len(one.tokens) + 1):
            halves = one.after(0), one.after(part)
            joined = cut(one, part).joined(halves[1])
            assert joined.replies == one.replies
            assert joined.tokens.tolist() == one.tokens.tolist()


def cut(progress, count):
    """Returns an earlier moment of the same episode, with so many tokens."""
    marks = [mark for mark in progress.replies if mark.start < count]
    if marks:
        marks[-1] = marks[-1]._replace(finish=None)
    return progress._replace(
        tokens=progress.tokens[:count],
        logprobs=progress.logprobs[:count],
        versions=progress.versions[:count],
        masks=progress.masks[progress.masks[:, 0] < count],
        sampler=progress.sampler.before(count),
        replies=tuple(marks),
    )
