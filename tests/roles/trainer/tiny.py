"""Helpers for the tests of the actors."""

from rl_sync.learning.optimizer import OptimizerConfig
from rl_sync.learning.sft import SftConfig

OPTIMIZER = OptimizerConfig(
    name="adamw",
    learning_rate=0.01,
    schedule="constant",
    final_share=0.0,
    warmup_updates=0,
    b1=0.9,
    b2=0.95,
    weight_decay=0.0,
    max_gradient_norm=1.0,
    updates_per_batch=1,
    max_skipped_updates=20,
)


def sft(steps):
    """Makes settings of SFT at a constant rate."""
    return SftConfig(steps=steps, learning_rate=0.02, schedule="constant")
