"""Supervised fine-tuning (SFT) on a task's demonstrations before RL: its steps and their rate."""

from __future__ import annotations

import dataclasses

from rl_sync.learning import learning_rates
from rl_sync.learning.schedules import SCHEDULES
from rl_sync.setting import check, setting


@dataclasses.dataclass(frozen=True)
class SftConfig:
    """`config.sft`.

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
        learning_rates.SFT.scratch,
        "Learning rate of SFT, after the warmup of `optimizer.warmup_updates`.",
        above=0,
        implied=str(learning_rates.SFT),
    )
    schedule: str = setting(
        "cosine",
        "Course of SFT's learning rate, which ends at 0 after the last SFT step.",
        choices=tuple(SCHEDULES),
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
