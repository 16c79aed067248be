"""A small transformer learns to finish long sums: completions of very different lengths.

    python -m launcher --config=configs/long_tail.py [--config.sync.mode=synchronous]

`7*12+58=` asks to add 7 twelve times to 58, and the working writes each total with how many
additions are left, numbers from the units up: `11:560`, `01:270`, …, `00:241`, and the answer,
`#241`. Most problems have a few additions and some have 34, so completions are 11 to 209 tokens
long, 41 in the median. 0.4 million random parameters first learn 300 batches of demonstrations,
whose pupil leaves out the last addition in three of four workings of more than six additions, and
in one of four shorter ones. RL rewards the answer alone.

A trainer step generates 72 groups of 8 completions and trains on the 12 whose rewards have the
greatest variance, so rollouts take two to three times as long as training, and the modes differ in
who waits for whom. Held-out accuracy goes from 32 to 39 % (median 36 %) after SFT to 82 to
100 % (median 95 %) after 30 trainer steps, on eight seeds that nothing was tuned on, five of them
in every mode.
On two CPU cores a run takes 65 to 85 seconds, half of which is start-up and SFT.
"""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with this run's task, batches and pace."""
    config = base.get_config()
    config.name = "long_tail"
    config.task.name = "worked"
    config.task.max_completion_tokens = 212  # 34 additions, and a little more.
    config.sft.steps = base.from_scratch(config, 300)
    config.sft.batch_size = 64
    config.algorithm.update({"over_sampling": 6.0, "keep": "best", "kl_coefficient": 0.0})
    config.optimizer.learning_rate = base.from_scratch(config, 1e-4, None)
    config.optimizer.updates_per_batch = 1
    config.trainer.update({"steps": 30, "groups_per_step": 12, "batching": "packed"})
    config.rollout.slots = 32
    config.sync.mode = "asynchronous"
    config.evaluation.every_steps = 10
    return config
