"""Completions in flight when an explorer dies go on where they were."""

from __future__ import annotations

import collections
import signal

import numpy as np
import pytest

from rl_sync.records.chaos_windows import VARIABLE, arm
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.rollouts.rollout_records import read_rollouts
from rl_sync.records.spans import SpanKind
from rl_sync.workdir import Workdir
from tests.models.test_invariant import SAME_BITS
from tests.runs.conftest import (
    RunRecord,
    assert_every_token_is_accounted_for,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
    flags,
)
from tests.runs.living import ended

KEEPING = ("--config.rollout.progress_tokens=1", "--config.rollout.chunk_tokens=1")
EXACT = {
    "synchronous": flags("synchronous"),
    "one step off-policy": flags("one_step_off_policy"),
    "two explorers in lockstep": flags("synchronous", count=2),
    "custom (2, 3)": flags("custom", interval=2, offset=3),
}
LATEST = {
    "asynchronous": (*flags("asynchronous"), "--config.sync.max_staleness=2"),
    "streaming": (*flags("asynchronous", streaming=True), "--config.sync.max_staleness=4"),
    "swapping in flight": (
        *flags("asynchronous", swap="in_flight"),
        "--config.sync.max_staleness=3",
    ),
    "two explorers": flags("multi_explorer", count=2),
}
DEATHS = frozenset({3, 12, 24, 35})


def drawn(run):
    """Returns each completion that was trained on, and its versions."""
    rows = read_rollouts(run.workdir)
    return sorted((one.step, one.ordinal, one.sample, one.ids, one.versions) for one in rows)


def rollouts(run):
    """Returns the drawn and the given tokens of the rollouts of each step, without lost ones."""
    found = collections.defaultdict(lambda: np.zeros(2, int))
    for span in run.spans(SpanKind.ROLLOUT, role="explorer"):
        about = span.attributes
        found[about["step"]] += about.get("tokens", 0), about.get("given", 0)
    return {step: tuple(counts.tolist()) for step, counts in found.items()}


def assert_it_drew_what_was_left(run, whole, rollouts, least_given):
    """Checks a run with deaths against one without; in so many steps some tokens were given.

    Args:
      rollouts: counts the drawn and the given tokens of each step of a run.
    """
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    assert_every_token_is_accounted_for(run)
    assert drawn(run) == drawn(whole)
    tokens = {step: tokens for step, (tokens, _) in rollouts(whole).items()}
    if run.settings.explorers == 1:
        assert {step: sum(counts) for step, counts in rollouts(run).items()} == tokens
    assert sum(given > 0 for _, given in rollouts(run).values()) >= least_given


@pytest.mark.samples(gate=("synchronous",))
@pytest.mark.parametrize("name", EXACT)
def test_an_exact_run_has_the_same_tokens_and_draws_none_again_that_were_told(memory_runs, name):
    run = memory_runs(*EXACT[name], *KEEPING, deaths=DEATHS)
    whole = memory_runs(*EXACT[name], *KEEPING)
    # Of two explorers, the one that dies may have only begun.
    least_given = 3 if run.settings.explorers == 1 else 1
    assert_it_drew_what_was_left(run, whole, rollouts, least_given)


@pytest.mark.samples(gate=("asynchronous", "streaming", "two explorers"))
@pytest.mark.parametrize("name", LATEST)
def test_with_latest_pulls_they_go_on_within_the_bound(memory_runs, name):
    run = memory_runs(*LATEST[name], *KEEPING, deaths=DEATHS)
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    assert_every_token_is_accounted_for(run)
    if run.settings.explorers == 1:  # Of two, the other may leave no place for an older version.
        assert sum(given for _, given in rollouts(run).values()) > 0


@SAME_BITS
@pytest.mark.gate
@pytest.mark.parametrize("name", ["synchronous", "one step off-policy"])
def test_a_batch_invariant_model_learns_the_same_bits_after_deaths(memory_runs, name):
    """Prefill gives tokens that go on elsewhere the keys and values that decoding gave them."""
    given = (*EXACT[name], *KEEPING, "--config.model.batch_invariant=true")
    run, whole = memory_runs(*given, deaths=DEATHS), memory_runs(*given)
    assert sum(given > 0 for _, given in rollouts(run).values()) >= 3
    assert run.digest == whole.digest


@pytest.mark.gate
def test_without_the_setting_groups_in_flight_are_drawn_again(memory_runs):
    run = memory_runs(*EXACT["synchronous"], KEEPING[1], deaths=DEATHS)
    whole = memory_runs(*EXACT["synchronous"], *KEEPING)
    assert drawn(run) == drawn(whole)
    assert rollouts(run) == rollouts(whole), "all of it is drawn after the deaths"


LONG_ONES = (
    "--config.task.max_completion_tokens=500",
    "--config.rollout.min_new_tokens=480",
    "--config.rollout.chunk_tokens=1",
    "--config.rollout.progress_tokens=16",
    "--config.trainer.groups_per_step=4",
    "--config.trainer.steps=3",
)


@pytest.mark.parametrize(
    ("given", "number"),
    [
        pytest.param(
            flags("asynchronous", transfer="server"),
            signal.SIGTERM,
            marks=pytest.mark.gate,
            id="asynchronous, asked to end",
        ),
        *(
            pytest.param(
                flags(mode, transfer=transfer),
                number,
                marks=pytest.mark.nightly,
                id=f"{mode} {name}",
            )
            for mode, transfer, number, name in [
                ("synchronous", "server", signal.SIGTERM, "asked to end"),
                ("synchronous", "server", signal.SIGKILL, "killed"),
                ("one_step_off_policy", "collective", signal.SIGKILL, "killed"),
                ("asynchronous", "checkpoint", signal.SIGKILL, "killed"),
            ]
        ),
    ],
)
def test_long_completions_of_a_process_go_on(started, tmp_path, monkeypatch, given, number):
    """A rollout of 8 · 500 tokens is struck in its first half."""
    folder = tmp_path / "windows"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    armed = arm(folder, "explorer1", "rollout", number, 0.2)
    process, workdir = started(*given, *LONG_ONES, until=None, forks=False)
    output = ended(process)
    assert process.returncode == 0, output
    assert not armed.exists()
    run = RunRecord(Workdir(workdir), output)
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    (restart,) = read_json_lines(run.workdir.restarts)
    ((tokens, given_tokens),) = [counts for counts in rollouts(run).values() if counts[1]]
    assert given_tokens >= 8 * 15, "a slow machine has told each once"
    assert 8 * 480 <= tokens + given_tokens <= 8 * 500, "none is drawn again"
    handed_over = number == signal.SIGTERM
    assert restart.get("handed_over", False) == handed_over
    assert ("asked to end, and handed over its work" in output) == handed_over
    assert ("Roles died" in output) != handed_over
