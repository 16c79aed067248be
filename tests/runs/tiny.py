"""A run that is over in seconds: a tiny model, few groups, no accuracy to speak of."""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.name = "tiny"
    config.model.embed_dim = 32
    config.model.num_layers = 1
    config.model.head_dim = 8
    config.model.mlp_dim = 64
    config.task.arithmetic.held_out_problems = 32
    config.sft.steps = 4
    config.sft.probe_every_steps = 4
    config.sft.probe_problems = 32
    config.trainer.steps = 12
    config.trainer.groups_per_step = 6
    config.trainer.group_size = 2
    config.evaluation.problems = 32
    config.optimizer.updates_per_batch = 2
    # No completion earns a reward, and yet every step has to change the weights.
    config.algorithm.entropy_coefficient = 0.1
    config.checkpoint.every_steps = 5
    config.reward.workers = 0
    config.launch.stop_secs = 20.0
    return config
