"""Runs whose rewards have parts for the form, with and without a filter on the outcome."""

import collections

import pytest

from rl_sync.records.metrics import read_metrics
from tests.runs.conftest import flags

SHAPED = (
    *flags("synchronous"),
    "--config.trainer.steps=4",
    "--config.task.arithmetic.operators=+",
    "--config.task.arithmetic.least_operand=0",
    "--config.task.arithmetic.greatest_operand=5",
    "--config.task.arithmetic.held_out_problems=8",
    "--config.sft.steps=60",
    "--config.task.reward=exact + 0.1 * length_band(greatest=1, margin=4)",
    "--config.reward.record=all",
)
FILTERED = (*SHAPED, "--config.algorithm.filter=outcome", "--config.algorithm.max_attempts=3")


def _scores(run):
    """Returns the scores of each group, by its lease: by the term for the outcome, and in all."""
    outcomes, scores = collections.defaultdict(set), collections.defaultdict(set)
    for one in run.judged:
        outcomes[one["lease"]].add(one["components"]["exact"])
        scores[one["lease"]].add(one["score"])
    return outcomes, scores


@pytest.mark.nightly
def test_a_filter_on_the_outcome_replaces_groups_that_differ_by_their_form_alone(memory_runs):
    run = memory_runs(*FILTERED)
    outcomes, scores = _scores(run)
    dropped, tried = run.leases("dropped"), set(run.leases("out of attempts"))
    assert dropped
    assert all(len(outcomes[lease]) == 1 for lease in dropped)
    assert any(len(scores[lease]) > 1 for lease in dropped)
    trained = [lease for lease in run.leases("trained") if lease not in tried]
    assert trained
    assert all(len(outcomes[lease]) == 2 for lease in trained)
    shares = [line["shaped_advantages"] for line in read_metrics(run.workdir, "rl")]
    assert shares == [0.0] * 4


@pytest.mark.gate
def test_without_a_filter_the_share_of_shaping_is_measured(memory_runs):
    run = memory_runs(*SHAPED)
    assert not run.leases("dropped")
    outcomes, scores = _scores(run)
    shaped = {lease for lease, of in scores.items() if len(of) > 1 and len(outcomes[lease]) == 1}
    shares = [line["shaped_advantages"] for line in read_metrics(run.workdir, "rl")]
    there = [bool(shaped & set(leases)) for leases in run.trained_leases]
    assert any(there)
    assert [share > 0 for share in shares] == there
