"""A small reward model learns to prefer right sums to those of a careless pupil.

    python -m launcher --config=configs/reward_model.py

A pair is a problem of the arithmetic run with its right answer and a wrong one: that of the pupil
who forgets carries, or one with a wrong digit.
"""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with the algorithm of reward models, and a batch of pairs."""
    config = base.get_config()
    config.name = "reward_model"
    config.algorithm.name = "reward_model"
    config.trainer.update({"steps": 400, "groups_per_step": 128, "group_size": 2})
    config.optimizer.learning_rate = base.from_scratch(config, 1e-3, None)
    config.optimizer.update({"schedule": "cosine", "updates_per_batch": 1})
    config.evaluation.every_steps = 100
    return config
