"""The optimizer and the learning rate's schedule, by the names that a config uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rl_sync.learning import learning_rates
from rl_sync.learning.schedules import SCHEDULES
from rl_sync.learning.sft import SftConfig
from rl_sync.models.vision.tower import TOWER, VISION
from rl_sync.setting import check, setting
from rl_sync.types import Params

_Optimizer = Callable[["OptimizerConfig", optax.Schedule], optax.GradientTransformation]

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

DECAYING = ("adamw", "lion")
"""Optimizers with weight decay."""

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


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """`config.optimizer`: an optax optimizer on the clipped gradient, and its learning rate.

    Raises:
      ValueError: an unknown name, or a value outside its range.
    """

    name: str = setting("adamw", "Optimizer of optax.", choices=tuple(OPTIMIZERS))
    learning_rate: float = setting(
        learning_rates.RL.scratch,
        "Learning rate of RL, after the warmup.",
        least=0,
        implied=str(learning_rates.RL),
    )
    schedule: str = setting(
        "constant",
        "Course of RL's learning rate from the end of the warmup to the last update of"
        " `schedule_steps`.",
        choices=tuple(SCHEDULES),
    )
    schedule_steps: int | None = setting(
        None,
        "Trainer steps at whose end `schedule` has come to `final_share`, where the learning rate"
        " stays from then on.",
        least=1,
        implied="`trainer.steps`, so that a run resumed with another number of them jumps to"
        " another learning rate",
        free="always",
    )
    final_share: float = setting(
        0.0,
        "Share of the learning rate that `schedule` ends at.",
        least=0,
        greatest=1,
    )
    warmup_updates: int = setting(
        10,
        "Updates of the learning rate's warmup, in RL and in SFT: the rate grows linearly, and is"
        " full from the last of these updates on; 0 or 1 for no warmup.",
        least=0,
    )
    b1: float = setting(
        0.9,
        "Decay rate of the first moment; the momentum of sgd; adafactor has none.",
        least=0,
        below=1,
    )
    b2: float = setting(
        0.95,
        "Decay rate of the second moment, of adamw, adam and lion.",
        least=0,
        below=1,
    )
    momentum_dtype: str = setting(
        "float32",
        "Dtype in which the first moment is kept: bfloat16 saves 2 bytes a trained parameter;"
        " adafactor has none.",
        choices=("float32", "bfloat16"),
    )
    weight_decay: float = setting(0.0, f"Weight decay, of {' and '.join(DECAYING)} alone.", least=0)
    max_gradient_norm: float = setting(
        1.0, "Norm that longer gradients are scaled down to.", above=0
    )
    tower_share: float = setting(
        1.0,
        "Learning rate of a vision tower that is trained, as a share of that of the other"
        " parameters.",
        least=0,
    )
    updates_per_batch: int = setting(
        4, "Optimizer updates of a trainer step, each on an equal share of its groups.", least=1
    )
    max_skipped_updates: int = setting(
        20,
        "Updates in a row that are skipped, because their loss or their gradient is not finite,"
        " before the run stops.",
        least=1,
    )

    def __post_init__(self) -> None:
        check(self, "optimizer")

    def sft(self, sft: SftConfig) -> ClippedOptimizer:
        """The optimizer of the SFT steps."""
        return self._transformation(self.sft_rate(sft))

    def sft_rate(self, sft: SftConfig) -> optax.Schedule:
        """The learning rate of the SFT steps, by the number of updates taken before."""
        return self._warmed(sft.learning_rate, self._shares(sft.schedule, sft.steps, 0.0))

    def updates(self, steps: int) -> int:
        """Returns the number of updates after which the schedule of a run of `steps` ends."""
        return (self.schedule_steps or steps) * self.updates_per_batch

    def reinforcement(self, updates: int) -> ClippedOptimizer:
        """The optimizer of the RL steps.

        Args:
          updates: number of updates after which the schedule ends; see `updates`.
        """
        return self._transformation(self.rate(updates))

    def rate(self, updates: int) -> optax.Schedule:
        """The learning rate of the RL steps, by the number of updates taken before."""
        return self._warmed(
            self.learning_rate, self._shares(self.schedule, updates, self.final_share)
        )

    def _shares(self, schedule: str, updates: int, final_share: float) -> optax.Schedule:
        return SCHEDULES[schedule](max(1, updates - self._warmup), final_share)

    @property
    def _warmup(self) -> int:
        """Number of updates before the first with the full learning rate."""
        return max(0, self.warmup_updates - 1)

    def _warmed(self, learning_rate: float, shares: optax.Schedule) -> optax.Schedule:
        first = learning_rate / max(1, self.warmup_updates)
        warmup = optax.linear_schedule(first, learning_rate, self._warmup)
        return optax.join_schedules(
            [warmup, lambda count: learning_rate * shares(count)], [self._warmup]
        )

    def _transformation(self, rate: optax.Schedule) -> ClippedOptimizer:
        return ClippedOptimizer(
            clipping=optax.clip_by_global_norm(self.max_gradient_norm),
            rule=_with_tower_share(OPTIMIZERS[self.name](self, rate), self.tower_share),
            is_elementwise=self.name not in WHOLE,
        )


def _with_tower_share(
    rule: optax.GradientTransformation, share: float
) -> optax.GradientTransformation:
    """Multiplies the changes of a vision tower. The state has no part of a tower with share 0."""
    if share == 1:
        return rule

    def init(params: Params) -> Any:
        return rule.init(params if share else _without_tower(params))

    def update(gradient: Params, state: Any, params: Params = None) -> tuple[Params, Any]:
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
