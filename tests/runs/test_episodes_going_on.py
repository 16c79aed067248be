"""Episodes in flight when an explorer dies are played again up to where they were, and go on."""

from __future__ import annotations

import collections
import signal

import pytest

from rl_sync.records.chaos_windows import VARIABLE, arm
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.spans import SpanKind
from rl_sync.workdir import Workdir
from tests.runs.conftest import (
    EMBEDDED,
    RunRecord,
    assert_every_token_is_accounted_for,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
    flags,
)
from tests.runs.living import ended
from tests.runs.test_going_on import (
    EXACT,
    KEEPING,
    LATEST,
    assert_it_drew_what_was_left,
    drawn,
)
from tests.runs.test_self_play import GAME

EPISODES = (
    EMBEDDED,
    "--config.task.name=tests/runs/talker.py:rows",
    "--config.environment.max_tokens=80",
    "--config.task.max_completion_tokens=4",
    "--config.sft.steps=0",
    "--config.trainer.steps=6",
)
TALKS = (*EPISODES, "--config.environment.name=tests/runs/talker.py:Talker")
WHIMS = (*EPISODES, "--config.environment.name=tests/runs/talker.py:Talker(whims=True)")
DEATHS_IN_EPISODES = frozenset({9, 34, 60, 85})


def rollouts(run):
    """Returns the drawn and the given tokens of the rollouts of each step that came to their end.

    The deaths in a step may be several, and only the last explorer does not die.
    """
    spans = run.spans(SpanKind.ROLLOUT, role="explorer")
    finished = [one.attributes for one in spans if "tokens" in one.attributes]
    found = collections.Counter[int](), collections.Counter[int]()
    for about in finished:
        found[0][about["step"]] += about["tokens"]
        found[1][about["step"]] += about.get("given", 0)
    return {step: (tokens, found[1][step]) for step, tokens in found[0].items()}


def differing(run):
    """Returns the number of given tokens that were dropped, since a turn was another one."""
    spans = run.spans(SpanKind.ROLLOUT, role="explorer")
    return sum(span.attributes.get("differing", 0) for span in spans)


@pytest.mark.samples(gate=("synchronous", "one step off-policy"))
@pytest.mark.parametrize("name", EXACT)
def test_episodes_go_on_in_an_exact_run_with_the_same_tokens(memory_runs, name):
    run = memory_runs(*EXACT[name], *KEEPING, *TALKS, deaths=DEATHS_IN_EPISODES)
    whole = memory_runs(*EXACT[name], *KEEPING, *TALKS)
    assert_it_drew_what_was_left(run, whole, rollouts, least_given=2)


@pytest.mark.samples(gate=("asynchronous", "two explorers"))
@pytest.mark.parametrize("name", LATEST)
def test_episodes_go_on_with_latest_pulls_within_the_bound(memory_runs, name):
    run = memory_runs(*LATEST[name], *KEEPING, *TALKS, deaths=DEATHS_IN_EPISODES)
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    assert_every_token_is_accounted_for(run)
    if run.settings.explorers == 1:  # Of two, the other may leave no place for an older version.
        assert sum(given for _, given in rollouts(run).values()) > 0
    assert not differing(run)


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_environments_that_play_otherwise_lose_only_the_replies_to_other_turns(memory_runs, mode):
    """Their first turns are the same, so that the first replies go on."""
    words = {"synchronous": EXACT, "asynchronous": LATEST}[mode][mode]
    run = memory_runs(*words, *KEEPING, *WHIMS, deaths=DEATHS_IN_EPISODES)
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    assert_every_token_is_accounted_for(run)
    given = sum(given for _, given in rollouts(run).values())
    assert 0 < differing(run) < given


@pytest.mark.gate
def test_without_the_setting_episodes_in_flight_are_drawn_again(memory_runs):
    run = memory_runs(*EXACT["synchronous"], KEEPING[1], *TALKS, deaths=DEATHS_IN_EPISODES)
    whole = memory_runs(*EXACT["synchronous"], *KEEPING, *TALKS)
    assert drawn(run) == drawn(whole)
    assert rollouts(run) == rollouts(whole), "all of it is drawn after the deaths"


@pytest.mark.gate
@pytest.mark.parametrize("opponent", ["self", "older(versions=2)"])
def test_games_against_oneself_go_on(memory_runs, opponent):
    words = (*EXACT["synchronous"], *KEEPING, *GAME, f"--config.environment.opponent={opponent}")
    run = memory_runs(*words, deaths=DEATHS_IN_EPISODES)
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    assert_every_token_is_accounted_for(run)
    if opponent == "self":  # An explorer that was started again has no older versions.
        assert drawn(run) == drawn(memory_runs(*words))
    assert sum(given for _, given in rollouts(run).values()) > 0


LONG_ONES = (
    *EPISODES,
    "--config.environment.name=tests/runs/talker.py:Apart(turns=6)",
    "--config.environment.max_tokens=2000",
    "--config.task.max_completion_tokens=150",
    "--config.rollout.min_new_tokens=130",
    "--config.evaluation.problems=4",
    "--config.rollout.chunk_tokens=1",
    "--config.trainer.groups_per_step=4",
    "--config.trainer.steps=3",
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "every", "number"),
    [
        pytest.param(flags(mode, transfer=transfer), every, number, id=f"{mode} {name}")
        for mode, transfer, every, number, name in [
            ("synchronous", "server", 16, signal.SIGTERM, "asked to end"),
            ("synchronous", "server", 16, signal.SIGKILL, "killed"),
            ("synchronous", "server", 0, signal.SIGKILL, "killed, without the setting"),
            ("one_step_off_policy", "collective", 16, signal.SIGKILL, "killed"),
            ("asynchronous", "checkpoint", 16, signal.SIGKILL, "killed"),
            ("asynchronous", "server", 16, signal.SIGTERM, "asked to end"),
        ]
    ],
)
def test_long_episodes_of_a_process_go_on(started, tmp_path, monkeypatch, given, every, number):
    """A rollout of 8 episodes of 6 · 150 tokens is struck after its environments have begun."""
    folder = tmp_path / "windows"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    armed = arm(folder, "explorer1", "rollout", number, 1.5)
    keeping = f"--config.rollout.progress_tokens={every}"
    process, workdir = started(*given, *LONG_ONES, keeping, until=None, forks=False)
    output = ended(process)
    assert process.returncode == 0, output
    assert not armed.exists()
    run = RunRecord(Workdir(workdir), output)
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    assert_every_token_is_accounted_for(run)
    (restart,) = read_json_lines(run.workdir.restarts)
    found = [counts for counts in rollouts(run).values() if counts[1]]
    if not every:
        assert found == []
        return
    ((tokens, given_tokens),) = found
    assert given_tokens >= 8 * 16
    assert 8 * 6 * 130 <= tokens + given_tokens <= 8 * 6 * 150, "none is drawn again"
    assert differing(run) == 0
    assert restart.get("handed_over", False) == (number == signal.SIGTERM)


@pytest.mark.nightly
def test_an_explorer_hands_over_at_once_while_its_environments_work(started, tmp_path, monkeypatch):
    """Each answer takes six seconds, and the request to end comes in the first of them."""
    folder = tmp_path / "windows"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    arm(folder, "explorer1", "rollout", signal.SIGTERM, 2.5)
    slow = "--config.environment.name=tests/runs/talker.py:Apart(turns=2, secs=6.0)"
    few = ("--config.trainer.steps=1", "--config.evaluation.problems=2")
    words = (*EXACT["synchronous"], *EPISODES, *few, slow, "--config.rollout.progress_tokens=1")
    process, workdir = started(*words, until=None, forks=False)
    output = ended(process)
    assert process.returncode == 0, output
    run = RunRecord(Workdir(workdir), output)
    first, *_ = run.spans(SpanKind.ROLLOUT, role="explorer")
    assert first.attributes["error"] == "HandOverError"
    assert first.duration_secs < 5.0
    (restart,) = read_json_lines(run.workdir.restarts)
    assert restart["handed_over"]
    assert restart["time"] - first.end_secs < 3.0
    assert sum(given for _, given in rollouts(run).values()) > 0
    assert_every_token_is_accounted_for(run)
