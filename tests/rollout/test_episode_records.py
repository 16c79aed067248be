"""Episodes on a real engine, with a director that goes by a script."""

import time

import numpy as np
import pytest

from rl_sync.ending import Ending
from rl_sync.models.config import ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.sharding import Layout
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import Continue, End, EpisodeRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny

MODEL = ModelConfig(
    vocab_size=30,
    embed_dim=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=16,
    max_length=64,
)
PARAMS = tiny.params(MODEL, spread=0.1)
SAMPLING = Sampling(max_new_tokens=5, stop_ids=(1,))
PROMPT = np.array([7, 8, 9], np.int32)
TURN = np.array([20, 21], np.int32)


class Script:
    """Answers each episode by its row: the given turns, one after the other, then the end.

    Args:
      late: answers come one by one, each only when it is asked for again.
    """

    def __init__(self, late=False):
        self.begun, self.heard, self.said, self.closed = [], [], [], False
        self._late, self._left, self._answers = late, {}, []

    def begin(self, episodes):
        for one in episodes:
            self.begun.append(one)
            self._left[one.episode] = list(one.row["turns"])
            self._answers.append(
                Continue(
                    one.episode,
                    one.row.get("prompt", PROMPT),
                    begins_segment=True,
                    streams=one.row.get("streams", False),
                )
            )

    def hear(self, sayings):
        self.heard += [(saying, len(self.said)) for saying in sayings]

    def take(self, replies):
        for said in replies:
            self.said.append(said)
            left = self._left[said.episode]
            turn = left.pop(0) if left else None
            self._answers.append(
                End(said.episode, ending(len(self.said)), reward=0.125)
                if turn is None
                else turn._replace(episode=said.episode)
            )

    def answers(self, timeout_secs, all_of_them):
        count = 1 if self._late and not all_of_them else len(self._answers)
        now, self._answers = self._answers[:count], self._answers[count:]
        return sorted(now, key=lambda answer: answer.episode)

    def close(self):
        self.closed = True


class Slow(Script):
    """Takes its time for answers, by calling `pause`."""

    pause = staticmethod(lambda: None)

    def answers(self, timeout_secs, all_of_them):
        self.pause()
        return super().answers(timeout_secs, all_of_them)


def spin():
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass


def ending(number):
    return Ending({"won": float(number)}, {}, "done", "", turns=1)


def _engine(slots=8, **options):
    return Engine(MODEL, Layout.single(), EngineOptions(slots=slots, chunk_tokens=3, **options))


def _episodes(script, repeats=True, **options):
    made = EpisodeEngine(_engine(**options), lambda: script, repeats=repeats)
    made.load(PARAMS, version=4)
    return made


def _request(turns=(), episodes=1, seed=(3,), sampling=SAMPLING, **row):
    return EpisodeRequest({"turns": turns, **row}, sampling, episodes, seed)


def _tokens(played):
    return [[s.tokens.tolist() for s in one.trajectory.segments] for of in played for one in of]


def _assert_logprobs_are_the_policy_s(played):
    for segment in played.trajectory.segments:
        logprobs, _ = token_logprobs(MODEL, PARAMS, segment.tokens[None])
        found = np.asarray(logprobs)[0][segment.mask]
        np.testing.assert_allclose(segment.behavior_logprobs[segment.mask], found, atol=1e-4)


def test_waits_for_environments_are_counted_and_what_they_compute_here_is_not():
    script = Slow()
    engine = _episodes(script)
    waits = []
    for script.pause in (lambda: time.sleep(0.2), spin):
        before = engine.stats
        engine.generate([_request()])
        waits.append((engine.stats - before).waiting_secs)
    assert waits[0] >= 0.2
    assert waits[1] < waits[0] - 0.1
    assert engine.stats.summary()["waiting_secs"] == pytest.approx(sum(waits))


@pytest.mark.nightly
def test_an_episode_of_one_turn_is_a_completion_of_its_prompt():
    script = Script()
    ((played,),) = _episodes(script).generate([_request()])
    (segment,) = played.trajectory.segments
    assert segment.tokens[:3].tolist() == PROMPT.tolist()
    assert segment.mask.tolist() == [False] * 3 + [True] * (len(segment) - 3)
    assert set(segment.policy_versions[3:]) == {4}
    assert (
        script.said[0].tokens.tolist() == played.last_reply.tolist() == segment.tokens[3:].tolist()
    )
    assert played.before_last_reply.tolist() == PROMPT.tolist()
    assert played.ending == ending(1)
    assert played.turn_rewards == (0.125,)
    _assert_logprobs_are_the_policy_s(played)


@pytest.mark.gate
def test_what_was_drawn_stays_and_turns_are_appended():
    script = Script()
    turns = [Continue(0, TURN, reward=0.5), Continue(0, TURN + 1, reward=0.25)]
    ((played,),) = _episodes(script).generate([_request(turns)])
    replies = [said.tokens.tolist() for said in script.said]
    (segment,) = played.trajectory.segments
    assert segment.tokens.tolist() == [
        *PROMPT,
        *replies[0],
        *TURN,
        *replies[1],
        *(TURN + 1),
        *replies[2],
    ]
    assert played.turn_rewards == (0.5, 0.25, 0.125)
    assert [stop - start for _, start, stop in played.trajectory.replies] == [*map(len, replies)]
    _assert_logprobs_are_the_policy_s(played)


@pytest.mark.gate
def test_a_rewritten_conversation_is_a_segment_of_its_own():
    turn = Continue(0, np.arange(10, 16, dtype=np.int32), begins_segment=True)
    ((played,),) = _episodes(Script()).generate([_request([turn])])
    first, second = played.trajectory.segments
    assert first.tokens[:3].tolist() == PROMPT.tolist()
    assert second.tokens[:6].tolist() == list(range(10, 16))
    assert first.mask.any()
    assert second.mask.any()
    _assert_logprobs_are_the_policy_s(played)


@pytest.mark.gate
def test_an_episode_that_begins_again_drops_what_was_drawn_and_draws_anew():
    again = Continue(0, PROMPT, begins_segment=True, restarts=True)
    script = Script()
    ((played,),) = _episodes(script).generate([_request([Continue(0, TURN), again])])
    assert len(script.said) == 3
    (segment,) = played.trajectory.segments
    assert segment.tokens[3:].tolist() == script.said[2].tokens.tolist()
    assert script.said[2].tokens.tolist() != script.said[0].tokens.tolist()
    assert len(played.turn_rewards) == 1


@pytest.mark.gate
def test_a_reply_has_the_room_and_the_stop_strings_of_its_turn():
    script, decode = Script(), lambda ids: "".join(f"<{i}>" for i in ids)
    turns = [
        Continue(0, TURN, room=2),
        Continue(0, TURN, stop_strings=tuple(f"<{i}>" for i in range(30))),
    ]
    _episodes(script, decode=decode).generate([_request(turns)])
    assert [len(said.tokens) for said in script.said[1:]] == [2, 1]
    assert [said.is_cut for said in script.said[1:]] == [True, False]


@pytest.mark.gate
@pytest.mark.parametrize("slots", [1, 3, 16])
def test_episodes_do_not_depend_on_slots_or_on_what_is_played_beside_them(slots):
    """With one slot, the cache of an episode is given up at each turn."""
    requests = [
        _request([Continue(0, TURN)] * turns, episodes=2, seed=(turns,)) for turns in range(4)
    ]
    alone = [_tokens(_episodes(Script()).generate([request])) for request in requests]
    together = _episodes(Script(), slots=slots).generate(requests)
    assert [_tokens([of]) for of in together] == alone


@pytest.mark.parametrize("repeats", [True, False])
def test_late_answers_change_nothing(repeats):
    requests = [_request([Continue(0, TURN)], episodes=3, seed=(i,)) for i in range(3)]
    prompt = _tokens(_episodes(Script()).generate(requests))
    assert _tokens(_episodes(Script(late=True), repeats).generate(requests)) == prompt


def test_alike_episodes_of_a_request_read_their_prompt_once_and_draw_differently():
    episodes = _episodes(Script())
    (played,) = episodes.generate([_request(episodes=6)])
    assert episodes.stats.prefill_tokens == len(PROMPT)
    assert len({one.last_reply.tobytes() for one in played}) == 6
    assert [one.index for one in played] == list(range(6))


def test_environments_of_a_request_have_one_seed_and_those_of_others_another():
    script = Script()
    episodes = _episodes(script)
    episodes.generate([_request(episodes=3), _request(seed=(4,)), _request()])
    seeds = [one.seed for one in script.begun]
    assert seeds[0] == seeds[1] == seeds[2] == seeds[4] != seeds[3]


@pytest.mark.gate
def test_the_cache_of_earlier_turns_is_used_while_slots_allow_it_or_set_aside():
    """Each turn costs its own tokens then, and the last drawn one; else the whole episode."""
    turns = [Continue(0, TURN)] * 3

    def read(slots, **options):
        episodes = _episodes(Script(late=True), repeats=False, slots=slots, **options)
        episodes.generate([_request(turns, seed=(i,)) for i in range(4)])
        return episodes.stats

    roomy, narrow, aside = read(slots=4), read(slots=1), read(slots=1, kv_offload_bytes=1 << 20)
    assert roomy.prefill_tokens == 4 * (len(PROMPT) + 3 * len(TURN))
    assert roomy.evictions == 0
    assert narrow.prefill_tokens > roomy.prefill_tokens
    assert narrow.evictions > 0
    assert aside.prefill_tokens == roomy.prefill_tokens, "caches were set aside in between"
    assert aside.restored == aside.set_aside == aside.evictions > 0


def test_nothing_is_held_when_all_episodes_are_over():
    episodes = _episodes(Script())
    again = Continue(0, PROMPT, begins_segment=True, restarts=True)
    rewritten = Continue(0, PROMPT, begins_segment=True)
    episodes.generate([_request([Continue(0, TURN), again, rewritten], episodes=3)])
    assert episodes.engine.held == ()
    assert episodes.unfinished == 0


def test_a_budget_ends_between_two_steps_and_the_rest_follows():
    episodes = _episodes(Script())
    (ticket,) = episodes.submit([_request([Continue(0, TURN)] * 4, episodes=2)])
    early = episodes.advance(budget_tokens=4)
    assert episodes.unfinished == 2 - len(early)
    late = episodes.advance()
    assert {(one.ticket, one.index) for one in [*early, *late]} == {(ticket, 0), (ticket, 1)}


def test_an_environment_that_never_begins_leaves_an_empty_trajectory():
    class Broken(Script):
        def begin(self, episodes):
            failed = Ending({}, {}, "environment failure", "no board", turns=0)
            self._answers += [End(one.episode, failed) for one in episodes]

    ((played,),) = _episodes(Broken()).generate([_request()])
    assert played.trajectory.segments == ()
    assert played.turn_rewards == ()
    assert not played.last_reply.size
    assert not played.before_last_reply.size


def test_closing_ends_the_environments():
    script = Script()
    episodes = _episodes(script)
    episodes.generate([_request()])
    episodes.close()
    assert script.closed


def test_environments_are_made_when_the_first_episode_begins():
    made = []
    episodes = EpisodeEngine(_engine(), lambda: made.append(Script()) or made[0], repeats=True)
    episodes.load(PARAMS, version=0)
    episodes.close()
    assert made == []
    episodes.generate([_request()])
    episodes.generate([_request()])
    assert len(made) == 1


def test_episodes_of_a_request_that_begin_with_other_rooms_keep_to_their_own():
    class Narrowing(Script):
        def begin(self, episodes):
            super().begin(episodes)
            self._answers = [one._replace(room=1 + 2 * (one.episode % 2)) for one in self._answers]

    script = Narrowing()
    (played,) = _episodes(script).generate([_request(episodes=4)])
    lengths = [len(one.last_reply) for one in played]
    assert [length <= 1 for length in lengths][::2] == [True, True]
    assert max(lengths) > 1


@pytest.mark.gate
def test_episodes_with_their_environments_leave_their_slots_to_others():
    """Six episodes wait for their first turns; eight may, beside those in the four slots."""
    script = Script(late=True)
    episodes = _episodes(script, repeats=False, slots=4)
    episodes.submit([_request(episodes=6)])
    assert (episodes.unfinished, episodes.occupied) == (6, 2)
    episodes.submit([_request(episodes=6, seed=(4,))])
    assert episodes.occupied == 8
    episodes.advance()
    assert episodes.occupied == 0


def test_a_reply_that_streams_is_heard_chunk_by_chunk_and_is_the_same():
    sampling = Sampling(max_new_tokens=8, stop_ids=())
    turns = [Continue(0, TURN), Continue(0, TURN, streams=True)]
    script, silent = Script(), Script()
    played = _episodes(script).generate([_request(turns, 2, sampling=sampling, streams=True)])
    plain = [turn._replace(streams=False) for turn in turns]
    expected = _episodes(silent).generate([_request(plain, 2, sampling=sampling)])
    assert _tokens(played) == _tokens(expected)
    assert silent.heard == []
    for episode in (0, 1):
        whole = [said for said in script.said if said.episode == episode]
        heard = [saying for saying, _ in script.heard if saying.episode == episode]
        # After each chunk but the last. In the first one of a later reply, steps read its turn.
        assert [len(saying.tokens) for saying in heard] == [3, 3, 1, 3, 3]
        for said, parts in ((whole[0], heard[:2]), (whole[2], heard[2:])):
            for name in ("tokens", "logprobs", "versions"):
                part = np.concatenate([getattr(saying, name) for saying in parts])
                np.testing.assert_array_equal(part, getattr(said, name)[: len(part)])
    assert [number for _, number in script.heard] == [0] * 4 + [4] * 6, "before each reply"


def test_nothing_after_a_stop_string_is_heard():
    def decode(ids):
        return "".join("abcdefghij"[i % 10] for i in ids)

    stops = Sampling(max_new_tokens=30, stop_ids=(), stop_strings=("c", "ga", "f"))
    script = Script()
    episodes = _episodes(script, decode=decode)
    episodes.generate([_request(seed=(i,), sampling=stops, streams=True) for i in range(8)])
    assert {said.is_cut for said in script.said} == {False}
    for said in script.said:
        heard = [s.tokens.tolist() for s, _ in script.heard if s.episode == said.episode]
        tokens = [token for part in heard for token in part]
        assert tokens == said.tokens.tolist()[: len(tokens)]
    assert any(len(said.tokens) % 3 for said in script.said), "no stop inside a chunk"
    assert script.heard


class Fan(Script):
    """Asks for three replies at once, goes on behind the last two, and ends."""

    def begin(self, episodes):
        for one in episodes:
            self.begun.append(one)
            self._left[one.episode] = 5
            self._answers += [
                Continue(
                    one.episode,
                    PROMPT + i,
                    begins_segment=True,
                    segment=i,
                    forgets=False,
                    request=10 * one.episode + i + 1,
                )
                for i in range(3)
            ]

    def take(self, replies):
        for said in replies:
            self.said.append(said)
            self._left[said.episode] -= 1
            segment = (said.request - 1) % 10
            if segment in (1, 2):
                request = said.request + 3
                self._answers.append(Continue(said.episode, TURN, segment=segment, request=request))
            if not self._left[said.episode]:
                self._answers.append(End(said.episode, ending(1)))


@pytest.mark.nightly
@pytest.mark.samples("2-True", gate=("8-True",))
@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("slots", [2, 8])
def test_replies_side_by_side_are_drawn_in_segments_of_their_own(slots, repeats):
    script = Fan()
    made = EpisodeEngine(_engine(slots=slots), lambda: script, repeats=repeats, side_by_side=True)
    made.load(PARAMS, version=4)
    (played,) = made.generate([_request(episodes=2)])
    for one in played:
        assert len(one.trajectory.segments) == 3
        assert len(one.trajectory.replies) == len(one.turn_rewards) == 5
        _assert_logprobs_are_the_policy_s(one)
        for number, segment in enumerate(one.trajectory.segments):
            assert segment.tokens[:3].tolist() == (PROMPT + number).tolist()
        said = [s for s in script.said if s.episode == one.index]
        drawn = {segment: [] for segment in range(3)}
        for reply in said:
            drawn[(reply.request - 1) % 10 % 3] += reply.tokens.tolist()
        for number, segment in enumerate(one.trajectory.segments):
            assert segment.tokens[segment.mask].tolist() == drawn[number]
    assert made.engine.unfinished == 0
    assert not made.engine._occupancy.parked


def test_equal_prompts_side_by_side_are_drawn_differently():
    class Same(Fan):
        def begin(self, episodes):
            super().begin(episodes)
            self._answers = [one._replace(ids=PROMPT) for one in self._answers]

    script = Same()
    made = EpisodeEngine(_engine(), lambda: script, repeats=True, side_by_side=True)
    made.load(PARAMS, version=4)
    made.generate([_request()])
    first = {said.tokens.tobytes() for said in script.said if said.request <= 3}
    assert len(first) == 3
