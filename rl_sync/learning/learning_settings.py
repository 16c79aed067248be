"""Settings of learning: the optimizer, the critic and SFT, with their default learning rates.

They are apart from the code that follows them, so that settings are read without JAX.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple, get_args

from rl_sync.setting import check, setting

OptimizerName = Literal["adamw", "adam", "sgd", "adafactor", "lion"]
RateSchedule = Literal["constant", "linear", "cosine"]
BatchingKind = Literal["padded", "bucketed", "packed", "shared"]
MIXED: tuple[BatchingKind, ...] = ("packed", "shared")
"""Kinds whose rows hold several trajectories."""
PAIR = 2
"""Number of trajectories of a pair."""
SHARED_ROW_TOKENS = 512
"""Least length of rows in which completions share a prompt, unless the settings say another."""

DECAYING = ("adamw", "lion")
"""Optimizers with weight decay."""


class LearningRates(NamedTuple):
    """Learning rates for a policy from scratch, for a whole checkpoint, and for its adapters."""

    scratch: float
    checkpoint: float
    adapters: float

    def rate(self, checkpoint: bool, adapters: bool) -> float:
        """Returns the learning rate of a policy.

        Args:
          checkpoint: whether the policy starts from a checkpoint.
          adapters: whether only adapters are trained.
        """
        if not checkpoint:
            return self.scratch
        return self.adapters if adapters else self.checkpoint

    def __str__(self) -> str:
        checkpoint, adapters = (f"{rate:.0e}".replace("e-0", "e-") for rate in self[1:])
        return (
            f"{self.scratch:g} for a policy from scratch, {checkpoint} for a checkpoint,"
            f" {adapters} with adapters"
        )


RL_RATES = LearningRates(3e-4, 1e-6, 2e-4)
SFT_RATES = LearningRates(2e-3, 1e-5, 2e-4)
"""Default learning rates by phase.

All parameters of a checkpoint: 1e-6 in RL, the default of TRL's `GRPOConfig` and of verl's actor,
and 1e-5 in SFT. Adapters: 2e-4, that of QLoRA (arXiv:2305.14314, appendix B) for models of 7 and 13
billion parameters, half of which suits larger ones; docs/real_model.md measures it in RL. Adapters
learn next to nothing at the rates of full training. The scale alpha / rank makes the best rate of
adapters nearly independent of their rank (Schulman et al., LoRA Without Regret, 2025).
"""


@dataclasses.dataclass(frozen=True)
class SftConfig:
    """`config.sft`: supervised fine-tuning (SFT) on a task's demonstrations before RL.

    Raises:
      ValueError: an unknown name, or a value outside its range.
    """

    steps: int = setting(
        0,
        "SFT steps on the task's demonstrations before RL; 0 for no SFT.",
        least=0,
        free="always",
    )
    learning_rate: float = setting(
        SFT_RATES.scratch,
        "Learning rate of SFT, after the warmup of `optimizer.warmup_updates`.",
        above=0,
        implied=str(SFT_RATES),
    )
    schedule: str = setting(
        "cosine",
        "Course of SFT's learning rate, which ends at 0 after the last SFT step.",
        choices=get_args(RateSchedule),
    )
    batch_size: int = setting(128, "Demonstrations in each SFT step.", least=1)
    probe_every_steps: int = setting(
        100, "SFT steps between two measurements of greedy accuracy.", least=1, free="always"
    )
    probe_problems: int = setting(
        128, "Maximum number of held-out problems of such a measurement.", least=1, free="always"
    )

    def __post_init__(self) -> None:
        check(self, "sft")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """`config.optimizer`: an optax optimizer on the clipped gradient, and its learning rate.

    Raises:
      ValueError: an unknown name, or a value outside its range.
    """

    name: str = setting("adamw", "Optimizer of optax.", choices=get_args(OptimizerName))
    learning_rate: float = setting(
        RL_RATES.scratch,
        "Learning rate of RL, after the warmup.",
        least=0,
        implied=str(RL_RATES),
    )
    schedule: str = setting(
        "constant",
        "Course of RL's learning rate from the end of the warmup to the last update of"
        " `schedule_steps`.",
        choices=get_args(RateSchedule),
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

    def updates(self, steps: int) -> int:
        """Returns the number of updates after which the schedule of a run of `steps` ends."""
        return (self.schedule_steps or steps) * self.updates_per_batch


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """`config.critic`: settings of the critic, for algorithms whose advantages use values.

    Raises:
      ValueError: an unknown name, or a value outside its range.
    """

    model: str = setting(
        "own",
        "Trunk of the critic: `own` for a model of its own, of the policy's shape and start, `head`"
        " for a head on the policy's trunk.",
        choices=("own", "head"),
    )
    learning_rate: float | None = setting(
        None,
        "Learning rate of the critic in RL; the rest of its optimizer is the policy's.",
        least=0,
        implied="optimizer.learning_rate",
    )
    coefficient: float = setting(0.5, "Weight of the value loss.", above=0)
    clip: float = setting(
        0.2, "The farthest that a trainer step may move a value; 0 for any distance.", least=0
    )
    warmup_steps: int = setting(
        0, "Trainer steps at the start of RL in which the critic alone learns.", least=0
    )

    def __post_init__(self) -> None:
        check(self, "critic")
