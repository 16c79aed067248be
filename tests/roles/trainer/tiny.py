"""Helpers for the tests of the actors."""

import dataclasses
from typing import Any

from rl_sync.learning.learning_settings import OptimizerConfig, SftConfig
from rl_sync.learning.objective import LossConfig

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


def with_loss(given: dict[str, Any]) -> dict[str, Any]:
    """Puts the fields of `LossConfig` among a trainer's into one."""
    names = [field.name for field in dataclasses.fields(LossConfig)]
    loss = LossConfig(**{name: given[name] for name in names if name in given})
    return {"loss": loss, **{name: of for name, of in given.items() if name not in names}}
