"""A small transformer learns to call a calculator, from rewards alone.

    python -m launcher --config=configs/tools.py

The questions are products of two numbers of two digits. In SFT the policy imitates a pupil who
estimates three answers of four, which is nearly always wrong, and works out the fourth with the
calculator: `<47*86>`, whose answer `4042=` it copies. The likeliest first token is then that of an
estimate. Rewards alone teach the policy to call the calculator. Held-out accuracy goes from 3.2 /
6.6 / 8.0 to 98.2 / 99.2 / 100 % (least, median, greatest of the seeds 300 to 307, on which nothing
was tuned). A whole command takes 60 to 82 seconds on two cores.
"""

import itertools
import random

from ml_collections import ConfigDict

from rl_sync.configs import base
from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

NUMBERS = range(10, 100)
TRAIN, HELD_OUT, DEMONSTRATIONS = 4000, 500, 40_000
CALLS = 0.25


def products(seed: int) -> Problems:
    """Draws products, and demonstrations by the pupil."""
    draw = random.Random(seed)
    pairs = draw.sample([*itertools.product(NUMBERS, NUMBERS)], TRAIN + HELD_OUT)
    prompts = [Prompt(0, f"{a}*{b}=", f"{a * b}") for a, b in pairs]
    train = [one._replace(prompt_id=i) for i, one in enumerate(prompts[:TRAIN])]
    held_out = [one._replace(prompt_id=i) for i, one in enumerate(prompts[TRAIN:])]
    shown = [draw.randrange(TRAIN) for _ in range(DEMONSTRATIONS)]
    return Problems(
        train=train,
        held_out=held_out,
        demonstrations=[train[i]._replace(answer=_pupil(*pairs[i], draw)) for i in shown],
        reward="environment",
    )


def _pupil(a: int, b: int, draw: random.Random) -> str:
    if draw.random() < CALLS:
        return f"<{a}*{b}>{a * b}={a * b}"
    return f"{round(a, -1) * round(b, -1)}"


def get_config() -> ConfigDict:
    """Returns the defaults with this run's task, environment and pace."""
    config = base.get_config()
    config.name = "tools"
    config.task.name = "rl_sync.configs.tools:products"
    config.task.max_completion_tokens = 10
    config.environment.name = "calculator"
    config.environment.max_turns = 3
    config.environment.max_tokens = 40
    config.sync.mode = "one_step_off_policy"
    config.sft.steps = base.from_scratch(config, 500)
    config.sft.probe_every_steps = 1000
    config.trainer.update({"steps": 80, "groups_per_step": 32, "group_size": 8})
    config.optimizer.schedule = "cosine"  # At a constant rate accuracy keeps moving by 5 %.
    config.evaluation.every_steps = 20
    return config
