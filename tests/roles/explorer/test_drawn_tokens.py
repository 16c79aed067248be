"""The loss is over the tokens that the policy drew, and over no other: whatever ends a reply."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.ending import Ending
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.group_rows import columns_of
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import Continue, End, EpisodeRequest
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.types import Group
from tests.models import tiny

pytestmark = pytest.mark.gate

END = 0
"""The id that ends replies also fills rows, as where pad_token and eos_token are the same."""
T = 48
MODEL = dataclasses.replace(tiny.CONFIG, max_length=T)
PARAMS = tiny.params(MODEL, spread=0.1)
LOGPROBS = jax.jit(Forward(MODEL, temperature=1.0, logits_bytes=1 << 20).logprobs)
SAMPLING = Sampling(max_new_tokens=6, stop_ids=(END,))
PROMPT = np.array([3, END, 4], np.int32)
TURN = np.array([END, 5, END], np.int32)
"""What the environment says has ends of its own."""
EVERY = tuple(f"<{i}>" for i in range(MODEL.vocab_size))
TURNS = {
    "the environment ends the episode": [],
    "a stop string ends each reply": [Continue(0, TURN, stop_strings=EVERY)] * 2,
    "the room ends each reply": [Continue(0, TURN, room=2)] * 2,
    "a new segment begins": [Continue(0, PROMPT, begins_segment=True)],
    "the turn says nothing": [Continue(0, np.zeros(0, np.int32), stop_strings=EVERY)] * 2,
}


class Script:
    """Answers each episode with its turns, one after the other, and then ends it."""

    def __init__(self):
        self.said, self._left, self._answers = {}, {}, []

    def begin(self, episodes):
        for one in episodes:
            self._left[one.episode] = list(one.row["turns"])
            self.said[one.episode] = []
            self._answers.append(Continue(one.episode, PROMPT, begins_segment=True))

    def take(self, replies):
        for said in replies:
            self.said[said.episode].append(said)
            left = self._left[said.episode]
            self._answers.append(
                left.pop(0)._replace(episode=said.episode)
                if left
                else End(said.episode, Ending({}, {}, "done", "", turns=1))
            )

    def answers(self, timeout_secs, all_of_them):
        now, self._answers = self._answers, []
        return sorted(now, key=lambda answer: answer.episode)

    def hear(self, sayings):
        raise AssertionError("no turn streams")

    def close(self):
        pass


def _engine():
    decode = lambda ids: "".join(f"<{i}>" for i in ids)  # noqa: E731
    return Engine(MODEL, Layout.single(), EngineOptions(slots=8, chunk_tokens=3, decode=decode))


def _group(finished, prompt=PROMPT):
    count = len(finished)
    columns = columns_of(finished, prompt)
    rewards, whole = np.zeros(count, np.float32), np.zeros(count, bool)
    return Group(0, 0, 0, 1, **columns, rewards=rewards, truncated=whole)


def _assert_learned(group, drawn, *, of_episodes=False):
    """Compares what a trainer learns with what was drawn, and finds ratios of 1."""
    for kind in ("padded", "packed"):
        layout = Batching(
            kind, len(drawn), T, 1, 0, of_episodes=of_episodes, with_segments=of_episodes
        )
        rows = layout.batch([group]).rows
        mask = np.asarray(rows.completion_mask)
        packing = rows.packing
        alone = np.arange(len(drawn))[:, None]
        belongs = alone if packing is None else np.asarray(packing.trajectories)
        logprobs = LOGPROBS(PARAMS, {}, RowInputs(jnp.asarray(rows.tokens), packing))
        assert mask.sum() == sum(len(tokens) for tokens, _ in drawn)
        for number, (tokens, recorded) in enumerate(drawn):
            here = mask & (belongs == number)
            assert rows.tokens[here].tolist() == tokens
            np.testing.assert_array_equal(rows.behavior_logprobs[here], recorded)
            np.testing.assert_allclose(np.asarray(logprobs)[here], recorded, atol=1e-4)


def test_what_environments_say_and_what_ends_their_replies_is_not_learned():
    script = Script()
    engine = EpisodeEngine(_engine(), lambda: script, repeats=True)
    engine.load(PARAMS, version=0)
    requests = [
        EpisodeRequest({"turns": turns}, SAMPLING, 2, (number,))
        for number, turns in enumerate(TURNS.values())
    ]
    played = [one for of in engine.generate(requests) for one in of]
    said = [script.said[episode] for episode in sorted(script.said)]
    drawn = [
        (
            [int(i) for reply in replies for i in reply.tokens],
            np.concatenate([reply.logprobs for reply in replies]),
        )
        for replies in said
    ]
    assert [len(replies) for replies in said] == [1, 1, 3, 3, 3, 3, 2, 2, 3, 3]
    assert any(reply.is_cut for replies in said for reply in replies)
    lasts = {int(reply.tokens[-1]) for replies in said for reply in replies}
    assert lasts > {END}, "some replies end with an end, and others without"
    _assert_learned(_group(played), drawn, of_episodes=True)


def test_completions_are_learned_with_the_end_that_was_drawn_and_without_one_that_was_not():
    engine = _engine()
    engine.load(PARAMS, version=0)
    choices = [
        SAMPLING,
        Sampling(max_new_tokens=6, stop_ids=(END,), stop_strings=EVERY[::2]),
        Sampling(max_new_tokens=2, stop_ids=(END,)),
    ]
    requests = [CompletionRequest(PROMPT, one, 6, (n,)) for n, one in enumerate(choices)]
    finished = [one for of in engine.generate(requests) for one in of]
    drawn = [(one.tokens.tolist(), one.logprobs) for one in finished]
    assert {tokens[-1] == END for tokens, _ in drawn} == {True, False}
    _assert_learned(_group(finished), drawn)
