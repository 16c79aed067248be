"""The optimizer and the learning rate's schedule, by the names that a config uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import optax

from rl_sync.spelling import hint

_DECAYING = ("adamw", "lion")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """`config.optimizer`: an optax optimizer on a clipped gradient, and its learning rate.

    Attributes:
      name: a key of `OPTIMIZERS`.
      learning_rate, warm_up_learning_rate: of the RL steps, and of the supervised ones before.
      schedule, warm_up_schedule: what becomes of the RL steps' learning rate after the ramp, and of
        the supervised ones'; keys of `SCHEDULES`.
      final_share: the share of the learning rate that `schedule` ends at, after the last update of
        the run. `warm_up_schedule` ends at 0, after the last supervised step.
      ramp_updates: the update that is the first to have the full learning rate; those before it
        have their even share of it. 0 or 1 for no ramp.
      b1, b2: decay rates of the moments; b1 is sgd's momentum, adafactor has neither.
      weight_decay: of adamw and lion.
      max_gradient_norm: longer gradients are scaled down to it.
      updates_per_batch: optimizer updates a trainer step, each on an equal share of the groups.
      max_skipped_updates: the run stops when so many updates in a row were skipped, because their
        loss or their gradient is NaN or infinite.

    Raises:
      ValueError: an unknown name, or a value outside its range.
    """

    name: str
    learning_rate: float
    warm_up_learning_rate: float
    schedule: str
    warm_up_schedule: str
    final_share: float
    ramp_updates: int
    b1: float
    b2: float
    weight_decay: float
    max_gradient_norm: float
    updates_per_batch: int
    max_skipped_updates: int

    def __post_init__(self) -> None:
        choices = {"name": tuple(OPTIMIZERS), "schedule": tuple(SCHEDULES)}
        choices["warm_up_schedule"] = choices["schedule"]
        for field, names in choices.items():
            if (value := getattr(self, field)) not in names:
                raise ValueError(
                    f"optimizer.{field}={value!r} is not one of {', '.join(names)}"
                    + hint(value, names)
                )
        for field in (
            "warm_up_learning_rate",
            "max_gradient_norm",
            "updates_per_batch",
            "max_skipped_updates",
        ):
            if getattr(self, field) <= 0:
                raise ValueError(f"optimizer.{field} must be above 0, not {getattr(self, field)}.")
        for field in ("learning_rate", "ramp_updates", "weight_decay"):
            if getattr(self, field) < 0:
                raise ValueError(
                    f"optimizer.{field} must be at least 0, not {getattr(self, field)}."
                )
        for field in ("b1", "b2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(
                    f"optimizer.{field} must be at least 0 and below 1, not {getattr(self, field)}."
                )
        if not 0 <= self.final_share <= 1:
            raise ValueError(
                f"optimizer.final_share must be between 0 and 1, not {self.final_share}."
            )
        if self.weight_decay and self.name not in _DECAYING:
            raise ValueError(
                f"optimizer.weight_decay={self.weight_decay} means nothing to optimizer.name="
                f"{self.name}: set it to 0, or use {' or '.join(_DECAYING)}."
            )

    def warm_up(self, updates: int) -> optax.GradientTransformation:
        """The optimizer of the supervised steps.

        Args:
          updates: of the whole warm-up; where the schedule ends.
        """
        shares = self._shares(self.warm_up_schedule, updates, 0.0)
        return self._transformation(self._ramped(self.warm_up_learning_rate, shares))

    def reinforcement(self, updates: int) -> optax.GradientTransformation:
        """The optimizer of the RL steps.

        Args:
          updates: of the whole run; where the schedule ends.
        """
        shares = self._shares(self.schedule, updates, self.final_share)
        return self._transformation(self._ramped(self.learning_rate, shares))

    def _shares(self, schedule: str, updates: int, final_share: float) -> optax.Schedule:
        return SCHEDULES[schedule](max(1, updates - self._ramp), final_share)

    @property
    def _ramp(self) -> int:
        """Updates before the first with the full learning rate."""
        return max(0, self.ramp_updates - 1)

    def _ramped(self, learning_rate: float, shares: optax.Schedule) -> optax.Schedule:
        first = learning_rate / max(1, self.ramp_updates)
        ramp = optax.linear_schedule(first, learning_rate, self._ramp)
        return optax.join_schedules(
            [ramp, lambda count: learning_rate * shares(count)], [self._ramp]
        )

    def _transformation(self, rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(self.max_gradient_norm), OPTIMIZERS[self.name](self, rate)
        )


_Optimizer = Callable[[OptimizerConfig, optax.Schedule], optax.GradientTransformation]

OPTIMIZERS: dict[str, _Optimizer] = {
    "adamw": lambda c, rate: optax.adamw(rate, b1=c.b1, b2=c.b2, weight_decay=c.weight_decay),
    "adam": lambda c, rate: optax.adam(rate, b1=c.b1, b2=c.b2),
    "sgd": lambda c, rate: optax.sgd(rate, momentum=c.b1 or None),
    "adafactor": lambda c, rate: optax.adafactor(rate),
    "lion": lambda c, rate: optax.lion(rate, b1=c.b1, b2=c.b2, weight_decay=c.weight_decay),
}
"""By name, from the config and a learning rate."""

SCHEDULES: dict[str, Callable[[int, float], optax.Schedule]] = {
    "constant": lambda updates, final: optax.constant_schedule(1.0),
    "linear": lambda updates, final: optax.linear_schedule(1.0, final, updates),
    "cosine": lambda updates, final: optax.cosine_decay_schedule(1.0, updates, final),
}
"""By name, from the number of updates and the share at the end: the share of the learning rate."""
