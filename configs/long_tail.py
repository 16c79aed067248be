"""Long tail."""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with this run's task, its batches and its pace."""
    config = base.get_config()
    config.name = "long_tail"
    config.task.name = "worked"
    config.task.max_completion_tokens = 212  # Of 34 additions, and a little room to be wrong in.
    config.warm_up.update({"steps": 300, "batch_size": 64})
    config.algorithm.update({"over_sampling": 6.0, "keep": "best", "kl_coefficient": 0.0})
    config.optimizer.update({"learning_rate": 1e-4, "updates_per_batch": 1})
    config.trainer.update({"steps": 30, "groups_per_step": 12, "batching": "packed"})
    config.rollout.slots = 32
    config.sync.mode = "asynchronous"
    return config
