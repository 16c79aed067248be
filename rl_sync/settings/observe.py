"""`config.observe` as a frozen, validated record."""

from __future__ import annotations

import dataclasses

from rl_sync.setting import check, setting


@dataclasses.dataclass(frozen=True)
class ObserveSettings:
    """`config.observe`."""

    rollouts: bool = setting(
        True,
        "Records the completions that are trained on, in rollouts/ in the work directory;"
        " `python -m launcher rollouts` shows them.",
    )
    rollout_bytes: int = setting(
        256 << 20,
        "Size of these records up to which those of every group are kept.",
        unit="bytes",
        least=0,
    )
    rollout_share: float = setting(
        0.02,
        "Share of the groups that are recorded once the records have `observe.rollout_bytes`.",
        least=0,
        greatest=1,
    )
    rollout_time: float = setting(
        0.005,
        "Share of the run's time that making these records may take, in a thread of the trainer; of"
        " quick steps with many completions fewer groups are recorded, at least one.",
        above=0,
        greatest=1,
    )
    alarm_steps: int = setting(
        5,
        "Trainer steps in a row with the same trouble, such as no reward, after which the run gives"
        " an alarm.",
        least=1,
    )

    def __post_init__(self) -> None:
        check(self, "observe")
