"""Runs that subtract the drift of the score: the distributions reach the trainer in every mode."""

import numpy as np
import pytest

from rl_sync.records.metrics import read_metrics
from tests.runs.test_in_memory import EXACT, LATEST, SYNCHRONOUS

TOPK = ("--config.algorithm.score_centering=topk", "--config.algorithm.centering_tokens=4")
WHOLE = ("--config.algorithm.score_centering=exact",)
BY_TRAINER = "--config.rollout.score=trainer"
NUCLEUS = ("--config.rollout.top_p=0.9", "--config.rollout.min_new_tokens=2")
STALE = ("--config.sync.mode=custom", "--config.sync.interval=1", "--config.sync.offset=3")
FEW = ("--config.trainer.steps=6", "--config.task.reward=format(pattern='[0-4].*')")
REINFORCE = (
    "--config.algorithm.name=grpo",
    "--config.algorithm.loss=reinforce",
    "--config.algorithm.allow_unsafe=true",
)


def _figures(run):
    lines = read_metrics(run.workdir, "rl")
    return (
        np.array([line[name] for line in lines]) for name in ("sampler_distance", "score_drift")
    )


@pytest.mark.samples(gate=("synchronous",))
@pytest.mark.parametrize("mode", [*EXACT, *LATEST])
def test_the_sampler_is_the_policy_where_nothing_is_stale(memory_runs, mode):
    run = memory_runs(*(EXACT | LATEST)[mode], *TOPK, *FEW, *REINFORCE)
    distance, drift = _figures(run)
    is_fresh = np.array([staleness == {0} for staleness in run.staleness])
    # A step has four updates, each of which changes the policy; the sampler stays.
    assert (distance < 0.3).all()
    assert (drift > 0).any()
    assert distance[is_fresh].max(initial=0) < distance[~is_fresh].max(initial=1)


@pytest.mark.gate
@pytest.mark.parametrize(
    "flags",
    [
        (*REINFORCE, "--config.algorithm.correction=tis", *NUCLEUS),
        ("--config.algorithm.name=decoupled_ppo",),
    ],
    ids=["truncated", "decoupled"],
)
def test_explorers_and_the_trainer_find_the_same_distance(memory_runs, flags):
    flags = (*STALE, *FEW, *flags)
    recorded = memory_runs(*flags, *WHOLE)
    computed = memory_runs(*flags, *WHOLE, BY_TRAINER)
    best = memory_runs(*flags, *TOPK)
    of_best = memory_runs(*flags, *TOPK, BY_TRAINER)
    distances = [next(_figures(run)) for run in (recorded, computed, best, of_best)]
    np.testing.assert_allclose(distances[0], distances[1], rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(distances[2], distances[3], rtol=2e-3, atol=1e-4)
    # The tokens that are not recorded are one outcome, whose inner distance is not seen.
    assert (distances[2][0] <= distances[0][0] + 1e-4).all()


@pytest.mark.gate
def test_one_update_with_fresh_data_needs_no_centering(memory_runs):
    flags = (*SYNCHRONOUS, *FEW, "--config.optimizer.updates_per_batch=1", BY_TRAINER)
    assert memory_runs(*flags).digest == memory_runs(*flags, *WHOLE).digest
