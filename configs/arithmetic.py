"""A small transformer learns to add and subtract, first from a careless pupil, then from rewards.

    python -m launcher --config=configs/arithmetic.py [--config.sync.mode=asynchronous]

The problems are sums and differences of two-digit numbers, written from the units up: `47+85=` is
answered `231`. 0.4 million random parameters first imitate 400 batches of demonstrations, whose
pupil forgets 60 % of the carries and borrows: greedy accuracy on held-out problems is then 38 to
50 %. In 100 trainer steps (64 prompts, 8 completions each; GRPO in synchronous mode, decoupled PPO
in the others) it passes 95 %, in every mode. On two CPU cores that takes one to two minutes, half
of which is start-up and the warm start.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the defaults, which are those of this run."""
    config = base.get_config()
    config.name = "arithmetic"
    config.sync.mode = "one_step_off_policy"
    return config
