"""The gap between the logprobs of trainer and explorer for the same tokens."""

import dataclasses

import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.learning.objective import LossConfig
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.placement import move
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.actor import ExplorerState
from rl_sync.roles.trainer.actor import Trainer
from tests.models import tiny
from tests.roles.explorer.test_actor import EXPLORER, MODEL, TASK, _lease
from tests.roles.trainer.tiny import OPTIMIZER, sft

TEMPERATURE, STEPS, GROUPS = 0.7, 3, 4


@pytest.mark.nightly
def test_without_staleness_and_learning_the_gap_stays_flat():
    """Tokens decoded one by one, with a cache, have the same logprobs as in a full pass."""
    params = tiny.params(MODEL)
    sampling = dataclasses.replace(EXPLORER.sampling, temperature=TEMPERATURE)
    explorer = dataclasses.replace(EXPLORER, sampling=sampling)
    trainer = Trainer(
        model=MODEL,
        loss=LossConfig(
            ALGORITHMS["grpo"],
            group_size=explorer.group_size,
            max_completion_tokens=TASK.max_completion_tokens,
            end_ids=sampling.stop_ids,
            microbatch_rows=0,
        ),
        optimizer=dataclasses.replace(OPTIMIZER, learning_rate=0.0, updates_per_batch=2),
        temperature=TEMPERATURE,
        steps=STEPS,
        sft=sft(STEPS),
        logits_bytes=1 << 20,
        layout=Layout.single(),
    )
    state = trainer.begin(trainer.start(move(params, trainer.abstract().params)))
    batching = Batching("padded", GROUPS * explorer.group_size, TASK.row_tokens, 2, 0)
    rewards = np.arange(explorer.group_size, dtype=np.float32)
    for step in range(STEPS):
        leases = [_lease(step * GROUPS + i) for i in range(GROUPS)]
        _, groups = explorer.rollout(ExplorerState(step, state.params), leases)
        groups = [dataclasses.replace(group, rewards=rewards) for group in groups]
        state, metrics = trainer.step(state, batching.batch(groups))
        assert metrics["staleness_max"] == 0
        assert metrics["gradient_norm"] > 0
        for name in ("logprob_gap", "kl_behavior_proximal", "kl_proximal_current"):
            assert abs(float(metrics[name])) < 1e-5, (step, name)
        np.testing.assert_allclose(metrics["effective_sample_share"], 1, rtol=1e-5)
