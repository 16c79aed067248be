"""Runs in which the policy plays against itself, in processes of their own."""

import collections

import pytest

from rl_sync.addons.games.nim import Nim
from rl_sync.environments.interface import Outcome, Standing
from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.rollout_records import read_rollouts
from tests.runs.conftest import EMBEDDED

MODES = ("synchronous", "one_step_off_policy", "asynchronous", "multi_explorer")
GAME = (
    EMBEDDED,
    "--config.task.name=configs.selfplay:games",
    "--config.environment.name=nim",
    "--config.environment.evaluation_opponent=configs.selfplay:perfect",
    "--config.environment.max_turns=6",
    "--config.environment.max_tokens=48",
    "--config.task.max_completion_tokens=4",
    "--config.trainer.steps=4",
    "--config.trainer.groups_per_step=6",
    "--config.evaluation.problems=8",
    "--config.sft.probe_problems=8",
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mode", "opponent"),
    [
        pytest.param("one_step_off_policy", "older(versions=2)", marks=pytest.mark.gate),
        *(
            pytest.param(mode, opponent, marks=pytest.mark.nightly)
            for mode in MODES
            for opponent in ("self", "older(versions=2)")
            if (mode, opponent) != ("one_step_off_policy", "older(versions=2)")
        ),
    ],
)
def test_a_policy_plays_against_itself_in_every_mode(runs, mode, opponent):
    several = ("--config.explorer.count=2",) if mode == "multi_explorer" else ()
    run = runs.get(
        *GAME, f"--config.sync.mode={mode}", f"--config.environment.opponent={opponent}", *several
    )
    judged = run.judged
    assert not [one for one in judged if one["score"] is None]
    seats = collections.defaultdict(set)
    for one in judged:
        episode = one["episode"]
        seats[one["held_out"]].add(episode["seat"])
        others = {move["by"] for move in episode["moves"] if move["player"] != episode["seat"]}
        if one["held_out"]:
            assert others <= {"configs.selfplay:perfect"}
        else:
            assert all(by.startswith("policy ") for by in others)
        assert one["score"] in (-1.0, 1.0) or episode["reason"] != "done"
    assert seats == {False: {0, 1}, True: {0, 1}}
    evaluation = read_metrics(run.workdir, "evaluation")[-1]
    assert sum(evaluation[f"games_{name}"] for name in ("won", "drawn", "lost")) <= 1
    assert evaluation["games_won"] == evaluation["accuracy"]
    rollouts = [*read_rollouts(run.workdir)]
    assert {one.step for one in rollouts} == {1, 2, 3, 4}
    for one in rollouts:
        assert one.episode is not None
        mine = [move for move in one.episode["moves"] if move["player"] == one.episode["seat"]]
        said = [turn for turn in one.turns or () if turn["by"] == "policy"]
        assert [turn["text"] for turn in said][: len(mine)] or not mine
    if opponent != "self":
        versions: dict[bool, dict[int, set[int]]] = {True: {}, False: {}}
        for one in rollouts:
            for move in one.episode["moves"]:
                is_own = move["player"] == one.episode["seat"]
                version = int(move["by"].split()[1])
                versions[is_own].setdefault(one.step, set()).add(version)
        newest = {own: max(map(max, of.values())) for own, of in versions.items()}
        assert newest[False] <= newest[True]
        if mode in MODES[:2]:  # Elsewhere it depends on time which versions play.
            assert max(versions[False][4]) < min(versions[True][4]), "no opponent was older"


class Unfair(Nim):
    """A game in which both players say something once, and the second one has 10 points more."""

    def step(self, reply):
        said = [*getattr(self, "_said", ()), sum(map(ord, reply.text)) % 8]
        if len(said) < 2:
            self._said, self._player = said, 1
            return self._turn()
        scores = [said[0], said[1] + 10]
        return Outcome({}, standings=tuple(Standing({"score": float(one)}) for one in scores))


@pytest.mark.nightly
def test_each_game_is_compared_with_those_of_its_seat_in_the_batch(memory_runs):
    run = memory_runs(
        *GAME,
        "--config.environment.name=tests.runs.test_self_play:Unfair",
        "--config.sync.mode=synchronous",
        "--config.environment.opponent=self",
        "--config.algorithm.advantage=rae",
        "--config.trainer.group_size=1",
        "--config.trainer.groups_per_step=12",
        "--config.trainer.steps=3",
    )
    by_role = collections.defaultdict(list)
    for one in read_rollouts(run.workdir):
        by_role[one.step, one.episode["seat"]].append((one.reward, one.advantage))
    assert {*by_role} == {(step, seat) for step in (1, 2, 3) for seat in (0, 1)}
    assert [len(games) for games in by_role.values()] == [6] * 6
    means = {role: sum(reward for reward, _ in games) / 6 for role, games in by_role.items()}
    assert all(means[step, 1] > means[step, 0] + 5 for step in (1, 2, 3))
    assert all(len({*games}) > 1 for games in by_role.values())
    for role, games in by_role.items():
        for reward, advantage in games:
            assert advantage == pytest.approx(reward - means[role], abs=1e-5)
