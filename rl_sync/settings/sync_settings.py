"""The config's section `sync`: when and how weights reach the explorers."""

from __future__ import annotations

import dataclasses
from typing import get_args

from rl_sync.schedule import MODES, Pull
from rl_sync.setting import check, setting
from rl_sync.transfer import TRANSFERS


@dataclasses.dataclass(frozen=True)
class SyncSettings:
    """`config.sync`: see `rl_sync.schedule`."""

    mode: str = setting(
        "one_step_off_policy",
        "Named schedule of when the trainer's weights reach the explorers.",
        choices=tuple(MODES),
    )
    interval: int | None = setting(
        None, "Trainer steps between two publications of weights.", least=1, implied="the mode's"
    )
    offset: int | None = setting(
        None,
        "Batches that explorers run ahead of the trainer.",
        least=0,
        implied="the mode's",
    )
    max_staleness: int | None = setting(
        None,
        "Maximum staleness, in trainer steps: the trainer drops groups that are older.",
        least=0,
        implied="the mode's, from interval and offset",
    )
    pull: str | None = setting(
        None,
        "Version that explorers take: `exact`, the one that the schedule names, or `latest`, the"
        " newest.",
        choices=get_args(Pull),
        implied="the mode's",
    )
    transfer: str | None = setting(
        None,
        "How weights reach the explorers: `collective` between the devices of one"
        " cluster, `server` point to point, `checkpoint` through files.",
        choices=tuple(TRANSFERS),
        implied="the mode's",
        free="always",
    )
    directory: str | None = setting(
        None,
        "Path that all processes reach, `gs://bucket/…` or `s3://bucket/…`: versions that go by"
        " checkpoint are written there, in a directory of the run's name.",
        implied="the work directory",
        free="always",
        is_path=True,
    )
    verify: bool = setting(
        True,
        "Compares a digest of the weights that arrived with that of those published.",
        free="always",
    )

    delta: str = setting(
        "auto",
        "Sends what changed since the version that an explorer has, with `server` and `checkpoint`:"
        " `on`, `off`, or `auto`: where the learning rate and `explorer.dtype` let most values stay"
        " the same. Explorers get the same bits in any case.",
        choices=("auto", "on", "off"),
        free="always",
    )
    full_every: int = setting(
        20,
        "Published versions between two full copies that `checkpoint` writes where it writes what"
        " changed.",
        unit="versions",
        least=1,
        free="always",
    )
    fanout: int = setting(
        0,
        "Explorers that fetch what changed from the trainer itself with `server`; others fetch it"
        " from an explorer, and each explorer hands it to as many; 0: all fetch from the trainer.",
        unit="explorers",
        least=0,
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "sync")
