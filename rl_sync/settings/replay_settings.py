"""The config's sections `replay` and `experience`: the buffer, and what happens to its groups."""

from __future__ import annotations

import dataclasses
from typing import get_args

from rl_sync.replay.priorities import PRIORITIES
from rl_sync.replay.replay_interface import Backend
from rl_sync.replay.tables import Selector
from rl_sync.setting import check, setting
from rl_sync.settings.launch_settings import PORT


@dataclasses.dataclass(frozen=True)
class ReplaySettings:
    """`config.replay`."""

    backend: str = setting(
        "auto",
        "Server of the buffer: `reverb`, the real one, `embedded`, the same semantics in Python, or"
        " `auto`: Reverb, and the embedded one where Reverb's environment cannot be had.",
        choices=("auto", *get_args(Backend)),
        free="always",
    )
    port: int = setting(0, "Port of the replay server; 0 for any free one.", **PORT, free="always")
    address: str | None = setting(
        None,
        "HOST:PORT of a replay server that runs already and has the run's table.",
        implied="the launcher starts one",
        free="always",
    )
    sampler: str = setting(
        "fifo",
        "Which group leaves the buffer next: the oldest, the newest, any, one drawn in proportion"
        " to its priority, or the one of the highest or the lowest; exact pulls need `fifo`.",
        choices=get_args(Selector),
    )
    priority: str = setting(
        "variance",
        "Priority of a group: the variance of its rewards, how far they are from their mean, its"
        " mean reward, the version that generated it, or the mean length of its completions.",
        choices=tuple(PRIORITIES),
    )
    priority_exponent: float = setting(
        1.0,
        "With `replay.sampler=prioritized` a group is drawn in proportion to priority ** exponent.",
        least=0.0,
    )
    times_sampled: int = setting(
        1,
        "Most trainer steps that train on a group, all within `sync.max_staleness`; exact pulls"
        " need 1.",
        unit="steps",
        least=1,
    )
    max_size: int | None = setting(
        None,
        "Groups that the buffer holds; explorers wait while it is full. Exact pulls need the"
        " default.",
        unit="groups",
        least=1,
        implied="as many as the schedule lets explorers be ahead",
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "replay")


@dataclasses.dataclass(frozen=True)
class ExperienceSettings:
    """`config.experience`."""

    pipeline: str | None = setting(
        None,
        "Functions between judging and training, `module:function` or `path/to/file.py:function`,"
        " separated by commas, with options as in `file.py:function(most=3)`: each gets a step's"
        " groups, and may leave some out, change rewards, and note metrics.",
        implied="none",
    )

    def __post_init__(self) -> None:
        check(self, "experience")
