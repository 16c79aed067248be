"""A small transformer learns to read handwritten digits that are written as characters.

    pip install "rl_sync[tasks]"
    python -m launcher --config=configs/digits.py

The 1,797 pictures of 8 x 8 pixels are those of scikit-learn. A pixel becomes a character, as the
policy does not see pictures. The warm-up imitates the right answers for 100 steps; then rewards
alone say what is right.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with this run's task, batches and pace."""
    config = base.get_config()
    config.name = "digits"
    config.task.name = "digits"
    config.task.digits.as_text = True
    config.warm_up.update({"steps": 100, "batch_size": 64, "probe_every_steps": 1000})
    config.sync.mode = "one_step_off_policy"
    config.trainer.update({"steps": 40, "groups_per_step": 32, "group_size": 8})
    config.optimizer.learning_rate = 1e-3
    return config
