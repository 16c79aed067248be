"""Records of rollouts of whole runs: each completion that was trained on, with its judgement."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.rollout_records import groups_of, read_rollouts
from tests.runs.conftest import EMBEDDED
from tests.runs.test_environments import FAULTY


def _drawn(group):
    """The stretches of tokens of one version of each completion, as `consumed` has them."""
    return [[[v, count] for v, count in one.versions if v >= 0] for one in group]


def test_every_completion_that_was_trained_on_is_recorded_once_with_its_judgement(runs):
    run = runs.get("--config.sync.mode=asynchronous", EMBEDDED)
    recorded = groups_of(read_rollouts(run.workdir))
    consumed = {
        (step["step"], group["lease_id"]): group["versions"]
        for step in run.consumed
        for group in step["groups"]
    }
    assert {name: _drawn(group) for name, group in recorded.items()} == consumed
    bound = run.settings.schedule.staleness_bound
    for group in recorded.values():
        for sample, one in enumerate(group):
            assert one.sample == sample
            assert one.prompt.endswith("=")
            assert one.why
            assert one.components == {"exact": one.reward}
            assert one.advantage is not None
            assert 0 <= one.staleness <= bound
            assert "".join(one.tokens) == one.completion


def test_the_figures_of_tokens_add_up_to_the_metrics_of_their_steps(runs):
    run = runs.get("--config.sync.mode=asynchronous", EMBEDDED)
    of_steps = collections.defaultdict(list)
    for one in read_rollouts(run.workdir):
        assert len(one.ratios) == len(one.entropies) == len(one.ids)
        of_steps[one.step].append(one)
    metrics = read_metrics(run.workdir, "rl")
    assert len(metrics) == len(of_steps)
    updates = run.settings.optimizer.updates_per_batch
    for line in metrics:
        shares = np.array_split(np.array(of_steps[line["step"]], object), updates)
        gaps, entropies = [], []
        for share in shares:
            gaps.append(np.mean([abs(math.log(ratio)) for one in share for ratio in one.ratios]))
            entropies.append(np.mean([value for one in share for value in one.entropies]))
        assert gaps[0] == pytest.approx(line["logprob_gap"], abs=1e-4)
        assert np.mean(entropies) == pytest.approx(line["entropy"], abs=1e-4)
    assert max(line["logprob_gap"] for line in metrics) > 1e-3


def test_a_run_without_any_reward_gives_an_alarm_in_its_report(runs):
    run = runs.get("--config.sync.mode=asynchronous", EMBEDDED)
    assert not any(one.reward for one in read_rollouts(run.workdir))
    assert "ALARM since trainer step 5: No completion earned a reward in the last 5" in run.output


@pytest.mark.nightly
def test_an_episode_that_failed_is_recorded_without_a_reward(runs):
    run = runs.get(
        *FAULTY,
        "--config.environment.name=tests/runs/faulty.py:Faulty",
        "--config.reward.unjudged_limit=1",
    )
    recorded = list(read_rollouts(run.workdir))
    assert len(recorded) == 4 * 8 * run.settings.trainer.group_size
    for one in recorded:
        assert one.turns is not None
        assert one.episode is not None
        assert (one.reward is None) == (one.episode["reason"] != "done")
    assert {one.reward is None for one in recorded} == {True, False}
