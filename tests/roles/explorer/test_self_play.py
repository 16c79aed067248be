"""Games of several players on a real engine: the policy, itself as opponent, and scripts."""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
import pytest

from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.reader import ReplyReader
from rl_sync.environments.environment_settings import EnvironmentSettings
from rl_sync.environments.hosts.inline_host import InlineHost
from rl_sync.environments.interface import Message, Outcome, Standing, Turn
from rl_sync.models.config import ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.director import Director
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import EpisodeRequest
from rl_sync.rollout.episodes.older_versions import OlderVersions
from rl_sync.rollout.sampling import Sampling
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from tests.models import tiny

pytestmark = pytest.mark.gate

TOKENIZER = CharacterTokenizer("abcdefgh0123;:|")
MODEL = ModelConfig(
    vocab_size=TOKENIZER.vocab_size,
    embed_dim=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=16,
    max_length=96,
)
PARAMS = tiny.params(MODEL)
SAMPLING = Sampling(max_new_tokens=4, stop_ids=tuple(TOKENIZER.eos_ids))


class Talk:
    """Three players say something in turn; each hears the two others, but not what began it.

    Args:
      rounds: the number of rounds.
      fails: whether the first beginning of each episode fails in the second round.
    """

    inline = True
    failed: ClassVar = set()

    def __init__(self, rounds=3, fails=False):
        self._rounds, self._fails = rounds, fails

    def reset(self, task, seed):
        self.players, self.said, self.task, self.seed = 3, [], task, seed
        return self.turn()

    def step(self, reply):
        self.said.append(reply.text)
        if self._fails and len(self.said) == 4 and self.task["prompt"] not in self.failed:
            self.failed.add(self.task["prompt"])
            raise ArithmeticError("the table broke")
        if len(self.said) < 3 * self._rounds:
            return self.turn()
        lengths = [sum(map(len, self.said[player::3])) for player in range(3)]
        standings = [Standing({"length": float(length)}) for length in lengths]
        return Outcome({}, standings=tuple(standings))

    def turn(self):
        player = len(self.said) % 3
        heard = "|".join(text for text in self.said[-2:] if text)
        heard = "".join(c for c in heard if c in "abcdefgh|")[:8]
        text = f"{player}{self.task['prompt']}:{heard};"
        return Turn((Message("user", text),), player=player, moves=("ab", "cd"))

    def close(self):
        pass


def players(opponent="self", slots=8, repeats=True, environment="Talk", **settings):
    limits = EnvironmentSettings(
        **{"name": "x:Y", "opponent": opponent, "max_tokens": 96, "attempts": 2, **settings}
    )

    def director():
        host = InlineHost(f"{__file__}:{environment}")
        return Director(host, Bridge(TOKENIZER), ReplyReader(TOKENIZER), limits)

    def engine():
        layout = Layout.single()
        return Engine(
            MODEL, layout, EngineOptions(slots=slots, chunk_tokens=3, decode=TOKENIZER.decode)
        )

    count = limits.older_versions
    older = OlderVersions(engine(), count, seed=5) if count else None
    made = EpisodeEngine(engine(), director, repeats=repeats, older=older)
    made.load(PARAMS, version=4)
    return made


def requests(groups=3, episodes=2, examines=False, sampling=SAMPLING):
    return [
        EpisodeRequest(
            {"prompt": "abc"[number]},
            sampling,
            episodes,
            (3, number, 0),
            number=number,
            examines=examines,
        )
        for number in range(groups)
    ]


def text_of(segment, drawn):
    return TOKENIZER.decode_all(segment.tokens[segment.mask == drawn].tolist())


@pytest.mark.nightly
def test_each_trajectory_is_the_view_of_the_player_who_learns():
    groups = players().generate(requests())
    for number, group in enumerate(groups):
        for one in group:
            assert one.ending.seat == number, "seats go round with the groups"
            (segment,) = one.trajectory.segments
            assert len(one.trajectory.replies) == one.ending.turns == 3
            told = text_of(segment, False)
            assert told.startswith(f"{number}{'abc'[number]}:")
            assert told.count(f"{number}{'abc'[number]}:") == 3
            own = [move.text for move in one.ending.moves if move.player == number]
            spans = one.trajectory.replies
            drawn = [TOKENIZER.decode(segment.tokens[s.start : s.stop].tolist()) for s in spans]
            assert own == drawn
            assert [move.player for move in one.ending.moves] == [0, 1, 2] * 3
            assert {move.by for move in one.ending.moves} == {"policy 4"}
            assert one.ending.rewards == {"length": sum(map(len, own))}
            logprobs, _ = token_logprobs(MODEL, PARAMS, segment.tokens[None])
            np.testing.assert_allclose(
                segment.behavior_logprobs[segment.mask],
                np.asarray(logprobs)[0][segment.mask],
                atol=1e-4,
            )


def described(groups):
    return [
        [[s.tokens.tolist() for s in one.trajectory.segments], one.ending]
        for group in groups
        for one in group
    ]


@pytest.mark.nightly
def test_games_against_oneself_are_the_same_in_any_batch():
    found = described(players().generate(requests()))
    assert described(players(slots=2).generate(requests())) == found
    assert described(players(repeats=False, slots=5).generate(requests())) == found
    alone = [described(players().generate([one])) for one in requests()]
    assert [one for of in alone for one in of] == found
    texts = {str(ending.moves) for _, ending in found}
    assert len(texts) == len(found), "opponents draw for each episode anew"


def test_the_engine_forgets_all_players_of_a_game_that_is_over():
    made = players(slots=2)
    made.generate(requests())
    assert made.engine.held == ()
    assert made.unfinished == 0


def test_a_game_that_begins_again_begins_with_all_its_players():
    made = players(environment="Talk(fails=True)")
    found = made.generate(requests(groups=3, episodes=1))
    for number, (one,) in enumerate(found):
        assert [fault.why for fault in one.ending.faults] == ["ArithmeticError: the table broke"]
        assert [move.player for move in one.ending.moves] == [0, 1, 2] * 3
        (segment,) = one.trajectory.segments
        assert text_of(segment, False).count(f"{number}{'abc'[number]}:") == 3
    assert made.engine.held == ()


def test_each_sampled_token_is_in_an_episode_an_opponents_or_in_a_failed_attempt():
    made, played = players(environment="Talk(fails=True)", slots=4), []
    # Games of other problems fail as in any test, whichever runs first.
    others = [dataclasses.replace(one, row={"prompt": "def"[one.number]}) for one in requests()]
    made.submit(others)
    while made.unfinished:
        played += made.step()
        stats, kept = made.stats, sum(one.trajectory.sampled_tokens for one in played)
        elsewhere = stats.surplus_tokens + stats.opponent_tokens + stats.restarted_tokens
        assert stats.decode_tokens == kept + made.tokens_in_flight + elsewhere
    assert made.tokens_in_flight == 0
    assert stats.opponent_tokens > stats.restarted_tokens > 0


def test_scripts_play_in_evaluations_and_where_they_are_asked_for():
    for made, wanted in (
        (players(evaluation_opponent="first"), requests(examines=True)),
        (players("first"), requests()),
    ):
        for number, group in enumerate(made.generate(wanted)):
            for one in group:
                others = [move for move in one.ending.moves if move.player != number]
                assert {(move.by, move.text) for move in others} == {("first", "ab")}
                mine = [move.by for move in one.ending.moves if move.player == number]
                assert mine == ["policy 4"] * 3


def test_opponents_draw_at_random_where_the_policy_is_greedy():
    greedy = dataclasses.replace(SAMPLING, greedy=True)
    first, second = players(seat=0).generate(requests(1, 2, sampling=greedy))[0]
    moves = [[move.text for move in one.ending.moves] for one in (first, second)]
    assert moves[0][0] == moves[1][0]
    assert moves[0][1:3] != moves[1][1:3]


@pytest.mark.parametrize(
    ("limit", "reason"), [({"max_turns": 2}, "turns"), ({"max_tokens": 16}, "context")]
)
def test_a_limit_of_any_player_ends_the_game(limit, reason):
    for (one,) in players(**limit).generate(requests(episodes=1)):
        assert one.ending.reason == reason
        assert one.ending.rewards == {}
        assert one.ending.moves


def by_of(groups):
    """Returns who played, for the player who learns and for the others."""
    both = set(), set()
    for group in groups:
        for one in group:
            for move in one.ending.moves:
                both[move.player != one.ending.seat].add(move.by)
    return both


def versions_played(made, last=12):
    """Plays with version after version; returns the opponents' of each, and all games."""
    found, games = {}, []
    for version in range(5, last):
        made.load(tiny.params(MODEL, seed=version), version)
        groups = made.generate(requests(groups=2))
        mine, others = by_of(groups)
        assert mine == {f"policy {version}"}
        (other,) = others
        found[version] = int(other.removeprefix("policy "))
        games.append(described(groups))
    return found, games


def test_opponents_are_played_with_versions_before_the_policy_s():
    made = players("older(versions=3)")
    assert by_of(made.generate(requests(groups=2)))[1] == {"policy 4"}, "there is no older one yet"
    found, games = versions_played(made)
    assert all(max(4, version - 3) <= older < version for version, older in found.items())
    assert len({version - older for version, older in found.items()}) > 1
    again = players("older(versions=3)")
    again.generate(requests(groups=2))
    assert versions_played(again) == (found, games), "drawn by the seed and the version"


def test_the_moves_of_older_weights_are_those_that_they_would_make():
    params = {4: PARAMS, 5: tiny.params(MODEL, seed=5)}
    made = players("older(versions=1)", seat=0)
    made.load(params[5], version=5)
    ((one,),) = made.generate(requests(1, 1))
    alone = players("self", seat=0)
    ((other,),) = alone.generate(requests(1, 1))
    assert one.ending.moves[1].by == "policy 4"
    told, first = one.ending.moves, other.ending.moves
    alike = [a.text == b.text for a, b in zip(told, first, strict=True)]
    # The first reply is the policy's own; if it is the same, so is the older opponent's.
    assert alike[1] or not alike[0]
    for moves in (told, first):
        assert [move.player for move in moves] == [0, 1, 2] * 3
    assert made.stats.decode_tokens > made.engine.stats.decode_tokens


def test_older_versions_survive_the_loss_of_the_arrays_that_were_loaded():
    older, before = OlderVersions(_idle(), 2, seed=1), {}
    for version in range(4):
        params = jax.tree.map(lambda x: x + 0, PARAMS)
        older.take(params, version)
        jax.tree.map(lambda x: x.delete(), before)
        before = params
    assert older.engine.version in (1, 2)
    older.take(params, 3)
    assert older.versions == [2, 3]


def _idle():
    return Engine(MODEL, Layout.single(), EngineOptions(slots=2, decode=TOKENIZER.decode))
