"""A small transformer learns to find and count shapes in pictures that are written as characters.

    pip install "rl_sync[tasks]"
    python -m launcher --config=configs/shapes.py

The task draws its pictures itself. With `task.shapes.as_text` a picture becomes a grid of
characters, as the policy does not see pictures. The warm-up imitates the right answers for 400
steps; then rewards alone say what is right.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with this run's task, batches and pace."""
    config = base.get_config()
    config.name = "shapes"
    config.task.name = "shapes"
    config.task.shapes.as_text = True
    config.warm_up.update({"steps": 400, "batch_size": 64, "probe_every_steps": 1000})
    config.sync.mode = "one_step_off_policy"
    config.trainer.update({"steps": 60, "groups_per_step": 32, "group_size": 8})
    config.optimizer.learning_rate = 1e-3
    return config
