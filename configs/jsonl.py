"""A small transformer learns the rows of a JSONL file of your own.

    python -m launcher --config=configs/jsonl.py --config.task.jsonl.path=FILE

Each line of FILE is an object {"prompt": …, "answer": …}. A tenth of the different prompts is held
out, each with all its lines, unless --config.task.jsonl.held_out_path names a file. A completion is
rewarded when it is the answer.

A model from scratch of 0.4 million parameters has a token for each character. It first learns 100
batches of the rows' own answers. Each of the 60 trainer steps then learns from rewards and, beside
the rollouts, from 128 of the answers, which keep the policy near them: held-out accuracy on 1,500
Roman numerals went from 75 to 82 % (median of four seeds), in a minute or two on two cores.
docs/tasks.md (Your own rows) has more tasks. A task that SFT solves nothing of stays unsolved: give
it more SFT steps (--config.sft.steps=400), or a checkpoint (--config.model.path=DIRECTORY), which
has no SFT by default.

The learning rate grows with the square root of the completions of a step, so it suits a
--config.trainer.groups_per_step of 16 as well as 192; a checkpoint has the usual one,
with adapters or without.
"""

import math

from ml_collections import ConfigDict

from rl_sync.configs import base

RATE = 2e-4
COMPLETIONS = 32 * 8
"""Completions of a trainer step for which `RATE` was chosen."""


def get_config() -> ConfigDict:
    """Returns the defaults with another task, and settings that suit many small tasks."""
    config = base.get_config()
    config.name = "jsonl"
    config.task.name = "jsonl"
    config.sync.mode = "one_step_off_policy"
    config.sft.steps = base.from_scratch(config, 100)
    config.algorithm.demonstration_rows = base.following(config, _demonstration_rows)
    config.algorithm.demonstration_coefficient = base.following(
        config, lambda one: 0.5 if one.algorithm.demonstration_rows else 0.0
    )
    config.trainer.update({"steps": 60, "groups_per_step": 32, "group_size": 8})
    config.optimizer.learning_rate = base.following(config, _learning_rate)
    config.optimizer.update({"warmup_updates": 40, "schedule": "cosine"})
    config.evaluation.every_steps = 10
    return config


def _demonstration_rows(config: ConfigDict) -> int:
    """Returns the number of answers in each step; 0 without SFT or with a checkpoint."""
    is_shown = config.sft.steps and not config.model.path
    return 32 * config.optimizer.updates_per_batch if is_shown else 0


def _learning_rate(config: ConfigDict) -> float | None:
    """Returns a learning rate for a policy from scratch, which is higher for large batches: their
    gradients have less noise. A checkpoint has the default."""
    if config.model.path:
        return None
    completions = config.trainer.groups_per_step * config.trainer.group_size
    return RATE * math.sqrt(completions / COMPLETIONS)
