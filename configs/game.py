"""A small transformer learns to win a game of several turns: find a hidden number.

    python -m launcher --config=configs/game.py

A number from 1 to 20 is hidden. The policy has five guesses, and learns after each whether the
hidden number is smaller or larger: halving the range always wins. In SFT the policy imitates a
pupil who uses half of these answers, and then wins 10 to 14 of the 20 games. 120 trainer steps take
it to 19 or 20 (50, 60, 65 and 70 -> 95, 100, 100 and 100 % on seeds 310 to 313, on which nothing
was tuned), in two minutes on two cores.
"""

import random

from ml_collections import ConfigDict

from rl_sync.configs import base
from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

MOST, GUESSES = 20, 5
HEEDS = 0.5
DEMONSTRATIONS = 20_000


def games(seed: int) -> Problems:
    """Makes a game for each number, to train on and held out; they are the same for every seed."""
    draw = random.Random(seed)
    train = [Prompt(i, f"{MOST}:", f"{i + 1}") for i in range(MOST)]
    shown = [draw.randrange(MOST) for _ in range(DEMONSTRATIONS)]
    return Problems(
        train=train,
        held_out=train,
        demonstrations=[train[i]._replace(answer=_pupil(i + 1, draw)) for i in shown],
        reward="environment",
    )


def _pupil(hidden: int, draw: random.Random) -> str:
    """Plays a game; each guess uses the answers so far with a probability of one half."""
    low, high, said = 1, MOST, ""
    for _ in range(GUESSES):
        heeds = draw.random() < HEEDS
        guess = draw.randint(low, high) if heeds else draw.randint(1, MOST)
        said += f"{guess:02}?"
        if guess == hidden:
            break
        if hidden < guess:
            high, said = min(high, guess - 1), said + "<"
        else:
            low, said = max(low, guess + 1), said + ">"
    return said


def get_config() -> ConfigDict:
    """Returns the defaults with this run's task, environment and pace."""
    config = base.get_config()
    config.name = "game"
    config.task.name = "rl_sync.configs.game:games"
    config.task.max_completion_tokens = 3
    config.environment.name = f"guess(guesses={GUESSES})"
    config.environment.max_turns = GUESSES
    config.environment.max_tokens = 24
    config.sync.mode = "one_step_off_policy"
    config.sft.steps = base.from_scratch(config, 300)
    config.trainer.update({"steps": 120, "groups_per_step": 40, "group_size": 8})
    config.optimizer.schedule = "cosine"
    config.evaluation.every_steps = 30
    return config
