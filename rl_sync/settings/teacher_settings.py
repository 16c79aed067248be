"""`config.teacher`: the model that a policy is distilled from."""

from __future__ import annotations

import dataclasses

from rl_sync.setting import check, setting


@dataclasses.dataclass(frozen=True)
class TeacherSettings:
    """`config.teacher`."""

    path: str | None = setting(
        None,
        "Teacher of algorithm.distillation: a Hugging Face checkpoint (its directory, or a hub"
        " name in the local cache), or the work directory of a run."
        " It has the policy's vocabulary.",
        implied="no teacher",
        is_path=True,
    )
    step: str | None = setting(
        None,
        "Snapshot that teaches, if `path` is a run: its trainer step, 0 for the policy that the run"
        " began with, or `best`.",
        implied="the newest",
    )
    offload: bool = setting(
        False,
        "Keeps the teacher in the host's memory, except while it computes logprobs.",
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "teacher")
