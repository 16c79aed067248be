"""The optimizer and the learning rate's schedule, by the names that a config uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rl_sync.learning.learning_settings import OptimizerConfig, SftConfig
from rl_sync.models.vision.tower import TOWER, VISION
from rl_sync.types import Params

_Optimizer = Callable[[OptimizerConfig, optax.Schedule], optax.GradientTransformation]

OPTIMIZERS: dict[str, _Optimizer] = {
    "adamw": lambda c, rate: optax.adamw(
        rate, b1=c.b1, b2=c.b2, weight_decay=c.weight_decay, mu_dtype=c.momentum_dtype
    ),
    "adam": lambda c, rate: optax.adam(rate, b1=c.b1, b2=c.b2, mu_dtype=c.momentum_dtype),
    "sgd": lambda c, rate: optax.sgd(
        rate, momentum=c.b1 or None, accumulator_dtype=c.momentum_dtype
    ),
    "adafactor": lambda c, rate: optax.adafactor(rate),
    "lion": lambda c, rate: optax.lion(
        rate, b1=c.b1, b2=c.b2, weight_decay=c.weight_decay, mu_dtype=c.momentum_dtype
    ),
}
"""Optimizers by name; each is made from the config and a learning rate."""

SCHEDULES: dict[str, Callable[[int, float], optax.Schedule]] = {
    "constant": lambda updates, final: optax.constant_schedule(1.0),
    "linear": lambda updates, final: optax.linear_schedule(1.0, final, updates),
    "cosine": lambda updates, final: optax.cosine_decay_schedule(1.0, updates, final),
}
"""Schedules by name: each maps the number of updates and the final share to optax's schedule."""

WHOLE = ("adafactor",)
"""Optimizers whose update of a value depends on others of its array."""


class ClippedOptimizer(NamedTuple):
    """An optimizer on the clipped gradient: the `optax.chain` of both.

    Attributes:
      clipping: scales the gradient down by the norm of all of it.
      rule: the optimizer.
      is_elementwise: whether `rule` updates each value by itself, so that parts of arrays may be
        updated one after the other.
    """

    clipping: optax.GradientTransformation
    rule: optax.GradientTransformation
    is_elementwise: bool

    def init(self, params: Params) -> tuple[optax.OptState, optax.OptState]:
        """Makes the initial state."""
        return self.clipping.init(params), self.rule.init(params)

    def update(
        self, gradient: Params, state: tuple[optax.OptState, optax.OptState], params: Params
    ) -> tuple[Params, tuple[optax.OptState, optax.OptState]]:
        """Returns the changes of the parameters, and the next state."""
        clipping, rule = state
        gradient, clipping = self.clipping.update(gradient, clipping, params)
        changes, rule = self.rule.update(gradient, rule, params)
        return changes, (clipping, rule)


def sft_optimizer(config: OptimizerConfig, sft: SftConfig) -> ClippedOptimizer:
    """Makes the optimizer of the SFT steps."""
    return _transformation(config, sft_rate(config, sft))


def sft_rate(config: OptimizerConfig, sft: SftConfig) -> optax.Schedule:
    """Makes the learning rate of the SFT steps, by the number of updates taken before."""
    return _warmed(config, sft.learning_rate, _shares(config, sft.schedule, sft.steps, 0.0))


def rl_optimizer(config: OptimizerConfig, updates: int) -> ClippedOptimizer:
    """Makes the optimizer of the RL steps.

    Args:
      updates: number of updates after which the schedule ends; see `OptimizerConfig.updates`.
    """
    return _transformation(config, rl_rate(config, updates))


def rl_rate(config: OptimizerConfig, updates: int) -> optax.Schedule:
    """Makes the learning rate of the RL steps, by the number of updates taken before.

    Args:
      updates: see `rl_optimizer`.
    """
    shares = _shares(config, config.schedule, updates, config.final_share)
    return _warmed(config, config.learning_rate, shares)


def _shares(
    config: OptimizerConfig, schedule: str, updates: int, final_share: float
) -> optax.Schedule:
    return SCHEDULES[schedule](max(1, updates - _warmup(config)), final_share)


def _warmup(config: OptimizerConfig) -> int:
    """Returns the number of updates before the first with the full learning rate."""
    return max(0, config.warmup_updates - 1)


def _warmed(
    config: OptimizerConfig, learning_rate: float, shares: optax.Schedule
) -> optax.Schedule:
    first = learning_rate / max(1, config.warmup_updates)
    warmup = optax.linear_schedule(first, learning_rate, _warmup(config))
    return optax.join_schedules(
        [warmup, lambda count: learning_rate * shares(count)], [_warmup(config)]
    )


def _transformation(config: OptimizerConfig, rate: optax.Schedule) -> ClippedOptimizer:
    return ClippedOptimizer(
        clipping=optax.clip_by_global_norm(config.max_gradient_norm),
        rule=_with_tower_share(OPTIMIZERS[config.name](config, rate), config.tower_share),
        is_elementwise=config.name not in WHOLE,
    )


def _with_tower_share(
    rule: optax.GradientTransformation, share: float
) -> optax.GradientTransformation:
    """Multiplies the changes of a vision tower. The state has no part of a tower with share 0."""
    if share == 1:
        return rule

    def init(params: Params) -> optax.OptState:
        return rule.init(params if share else _without_tower(params))

    def update(
        gradient: Params, state: optax.OptState, params: Params = None
    ) -> tuple[Params, optax.OptState]:
        if share or not _has_tower(gradient):
            changes, state = rule.update(gradient, state, params)
            if not _has_tower(changes):
                return changes, state
            tower = jax.tree.map(lambda x: x * share, changes[VISION][TOWER])
        else:
            given = _without_tower(gradient), state, _without_tower(params)
            changes, state = rule.update(*given)
            tower = jax.tree.map(jnp.zeros_like, gradient[VISION][TOWER])
        return {**changes, VISION: {**changes[VISION], TOWER: tower}}, state

    return optax.GradientTransformation(init, update)


def _has_tower(params: Params) -> bool:
    """Says whether a tree of parameters has a vision tower; optax also inits with other objects."""
    return isinstance(params, dict) and TOWER in params.get(VISION, {})


def _without_tower(params: Params) -> Params:
    """Puts a node without arrays in the place of a vision tower."""
    if not _has_tower(params):
        return params
    return {**params, VISION: {**params[VISION], TOWER: optax.MaskedNode()}}
