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
    config.trainer.update({"steps": 60, "groups_per_step": 32, "group_size": 8})
    config.optimizer.learning_rate = 2e-4
    return config
