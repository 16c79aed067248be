"""A small transformer learns to add and subtract, first from a careless pupil, then from rewards.

    python -m launcher --config=configs/arithmetic.py [--config.sync.mode=asynchronous]

The problems are sums and differences of two-digit numbers, written from the units up: `47+85=` is
answered `231`. 0.4 million random parameters first learn 400 batches of demonstrations, whose
pupil forgets 60 % of the carries and borrows: greedy accuracy on held-out problems is then 37 to
47 %. In 100 trainer steps (192 prompts, 4 completions each, the best of three times as many; TOPR)
it passes 98 % on each of twelve seeds that nothing was tuned on, in every mode. On two CPU cores
that takes one to one and a half minutes, a third of which is start-up and SFT.
"""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with this run's task, batches and pace, which learn with every seed."""
    config = base.get_config()
    config.name = "arithmetic"
    config.sft.steps = base.from_scratch(config, 400)
    config.sync.mode = "one_step_off_policy"
    # A rollout costs a third of a train step, and half of the groups teach nothing. So the run
    # generates three times as many groups as it trains on.
    config.algorithm.name = "topr"
    config.algorithm.over_sampling = 3.0
    config.algorithm.keep = "best"
    config.trainer.groups_per_step = 192
    config.trainer.group_size = 4
    # One step moves logprobs by up to 0.6 nats, which TOPR tolerates.
    config.algorithm.logprob_gap_alarm = 2.0
    config.optimizer.learning_rate = base.from_scratch(config, 1.4e-3, None)
    config.optimizer.schedule = "cosine"
    config.evaluation.every_steps = 25
    return config
