"""Whole runs in memory: their staleness, their bits, what they learn, and how they fail."""

from __future__ import annotations

import numpy as np
import pytest

from rl_sync.cluster.user_errors import RunEndedError
from tests.runs.conftest import (
    EMBEDDED,
    assert_every_token_is_accounted_for,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
    flags,
    what_was_trained_on,
)

SYNCHRONOUS, ONE_STEP = flags("synchronous"), flags("one_step_off_policy")
EXACT = {
    "synchronous": SYNCHRONOUS,
    "one step off-policy": ONE_STEP,
    "custom (2, 3)": flags("custom", interval=2, offset=3),
}
LATEST = {
    "asynchronous": (*flags("asynchronous"), "--config.sync.max_staleness=2"),
    "two explorers": flags("multi_explorer", count=2),
}
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.gate) for seed in (1, 2))]


@pytest.mark.samples("asynchronous")
@pytest.mark.parametrize("name", [*EXACT, *LATEST])
def test_every_step_consumes_a_whole_batch_within_the_staleness_bound(memory_runs, name):
    run = memory_runs(*(EXACT | LATEST)[name])
    assert_within_the_staleness_bound(run)
    assert_nothing_is_lost_or_doubled(run)
    assert_every_token_is_accounted_for(run)
    bound = run.settings.schedule.staleness_bound
    assert max(set().union(*run.staleness)) <= bound
    assert [len(leases) for leases in run.trained_leases] == [6] * 12


# At interval 2 and offset 3, step t has the greatest even version up to t - 4, at least 0.
STALENESS = {
    "synchronous": [0] * 12,
    "one step off-policy": [0, *[1] * 11],
    "custom (2, 3)": [0, 1, 2, 3, *[4, 3] * 4],
}


@pytest.mark.gate
@pytest.mark.parametrize("name", [*EXACT])
def test_an_exact_mode_trains_on_the_version_of_the_formula(memory_runs, name):
    run = memory_runs(*EXACT[name])
    exact = run.settings.schedule.exact_version
    assert [run.versions(step) for step in run.consumed] == [{exact(s + 1)} for s in range(12)]
    assert run.staleness == [{staleness} for staleness in STALENESS[name]]


@pytest.mark.gate
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["synchronous", "one step off-policy"])
def test_it_has_the_bits_of_a_run_over_sockets(memory_runs, runs, name, seed):
    words = EXACT[name] if seed == 0 else (*EXACT[name], f"--config.seed={seed}")
    run, other = memory_runs(*words), runs.get(*words, EMBEDDED)
    assert run.digest == other.digest
    assert len(run.published) >= 11
    assert run.published == other.published
    assert what_was_trained_on(run) == what_was_trained_on(other)


@pytest.mark.gate
@pytest.mark.parametrize("seed", range(3))
def test_it_learns_what_the_reward_asks_for(memory_runs, seed):
    """The reward wants a small first digit, which an untrained policy writes at times."""
    run = memory_runs(
        *SYNCHRONOUS,
        f"--config.seed={seed}",
        "--config.trainer.steps=30",
        "--config.task.reward=format(pattern='[0-4].*')",
        "--config.optimizer.learning_rate=0.01",
        "--config.algorithm.entropy_coefficient=0.0",
    )
    assert len(run.rewards) == 30
    assert np.mean(run.rewards[:5]) < 0.85 < 0.95 < np.mean(run.rewards[-10:])


def test_a_role_that_fails_ends_the_run_with_its_error(memory_runs):
    failing = "--config.experience.pipeline=tests.runs.cleaning:fails(at=3)"
    with pytest.raises(RunEndedError, match="LookupError: no such experience"):
        memory_runs(*SYNCHRONOUS, failing)
