"""The optimizer and the learning rate's schedule, by the names that a config uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import optax

from rl_sync.setting import check, setting

_Optimizer = Callable[["OptimizerConfig", optax.Schedule], optax.GradientTransformation]

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

_DECAYING = ("adamw", "lion")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """`config.optimizer`: an optax optimizer on a clipped gradient, and its learning rate.

    Raises:
      ValueError: an unknown name, or a value outside its range.
    """

    name: str = setting("adamw", "Optimizer of optax.", choices=tuple(OPTIMIZERS))
    learning_rate: float = setting(3e-4, "Learning rate of RL, after the ramp.", least=0)
    warm_up_learning_rate: float = setting(
        2e-3, "Learning rate of the supervised steps, after the ramp.", above=0, free="warm"
    )
    schedule: str = setting(
        "constant",
        "Course of RL's learning rate from the ramp to the last update of `schedule_steps`.",
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
    warm_up_schedule: str = setting(
        "cosine",
        "Course of the supervised steps' learning rate, which ends at 0 after the last of them.",
        choices=tuple(SCHEDULES),
    )
    final_share: float = setting(
        0.0,
        "Share of the learning rate that `schedule` ends at.",
        least=0,
        greatest=1,
    )
    ramp_updates: int = setting(
        10,
        "Update that is the first to have the full learning rate, in RL and in the warm-up; those"
        " before it have their even share of it; 0 or 1 for no ramp.",
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
    weight_decay: float = setting(
        0.0, f"Weight decay, of {' and '.join(_DECAYING)} alone.", least=0
    )
    max_gradient_norm: float = setting(
        1.0, "Norm that longer gradients are scaled down to.", above=0
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
        return self._transformation(self.warm_up_rate(updates))

    def warm_up_rate(self, updates: int) -> optax.Schedule:
        """The learning rate of the supervised steps, by the number of updates taken before."""
        shares = self._shares(self.warm_up_schedule, updates, 0.0)
        return self._ramped(self.warm_up_learning_rate, shares)

    def updates(self, steps: int) -> int:
        """Returns the updates at whose end the schedule ends, in a run of so many trainer steps."""
        return (self.schedule_steps or steps) * self.updates_per_batch

    def reinforcement(self, updates: int) -> optax.GradientTransformation:
        """The optimizer of the RL steps.

        Args:
          updates: where the schedule ends; see `updates`.
        """
        return self._transformation(self.rate(updates))

    def rate(self, updates: int) -> optax.Schedule:
        """The learning rate of the RL steps, by the number of updates taken before."""
        return self._ramped(
            self.learning_rate, self._shares(self.schedule, updates, self.final_share)
        )

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
